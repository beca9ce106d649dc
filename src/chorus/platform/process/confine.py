"""A process that runs what strangers wrote: it takes what it is allowed, and is the first to go."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
from pathlib import Path

from chorus.platform import system

_PR_SET_PDEATHSIG = 1


def be_expendable(memory_bytes: int) -> None:
    """Without a word on anybody's screen, the kernel ends this process when its parent dies, or when it takes so much
    more memory than it has now.

    Linux does both. Elsewhere memory limits do nothing useful: the parent must look at its children's memory, and a
    child must end with its link.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if sys.platform == "linux" and system.is_linux():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Whoever else is short of memory on this machine: this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000")
        used = int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE
        most = used + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
