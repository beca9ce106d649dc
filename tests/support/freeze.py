"""A process that stands still: one that hangs, as its parent sees it."""

from __future__ import annotations

import time

import psutil

DEADLINE = 60.0


def freeze(process: psutil.Process) -> None:
    """Stops it, and returns once all its threads stand: for a moment after the signal, all but one still run."""
    process.suspend()
    deadline = time.monotonic() + DEADLINE
    while not _stands(process):
        assert time.monotonic() < deadline, f"process {process.pid} does not stop"
        time.sleep(0.001)


def _stands(process: psutil.Process) -> bool:
    threads = [psutil.Process(thread.id) for thread in process.threads()] if psutil.LINUX else [process]
    return all(thread.status() == psutil.STATUS_STOPPED for thread in threads)
