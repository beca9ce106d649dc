"""Which process a number means: one that ended may have left its number to another."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psutil

from chorus.platform import system


def mark(pid: int) -> str:
    """Tells the process from every other that has or had its number; raises psutil.Error where there is none.

    It is made of what stays when the clock is set: Linux counts a process's start from the boot, macOS notes the
    moment once.
    """
    if not system.is_linux():
        return repr(psutil.Process(pid).create_time())
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    # The name, in parentheses, may hold anything; the start is the twentieth field after it.
    return f"{_boot()} {status.rpartition(')')[2].split()[19]}"


def lives(pid: int, known: str) -> bool:
    """Whether the process that had this number and mark is still there; one that only waits to be reaped is not."""
    try:
        return mark(pid) == known and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
