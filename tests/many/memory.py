"""What processes hold, shared pages counted once among those that share them (Linux's PSS)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.1


def pss(pid: int) -> int:
    """In bytes; nothing of a process that has just ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def held(processes: Iterable[psutil.Process]) -> int:
    return sum(pss(process.pid) for process in processes)


class Sampled:
    """Looks ten times a second at what some processes hold together, for as long as the block lasts."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0
        self.samples = 0

    def _look(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self.most = max(self.most, held(self._processes()))
            self.samples += 1
            self._over.wait(max(0.0, began + SAMPLE_SECONDS - time.monotonic()))

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
