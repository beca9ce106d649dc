"""What processes hold for themselves (Linux's PSS without the pages of files).

Whoever maps the same libraries takes a share of their pages, so that the share of those who stay grows when others end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

OWN = ("Pss_Anon:", "Pss_Shmem:")


def own_memory(processes: Iterable[psutil.Process]) -> int:
    """In bytes; nothing of a process that has just ended."""
    return sum(_own(process.pid) for process in processes)


def _own(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found = [int(line.split()[1]) << 10 for line in lines if line.startswith(OWN)]
        assert len(found) == len(OWN), lines
        return sum(found)
    return 0
