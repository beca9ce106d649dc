"""The thread in which MLX computes on a CPU.

Every operation is handed to it, and each time it would interrupt the thread that hands over: a third of the processor
time of a test with a tiny model went into such changes.
"""

from __future__ import annotations

import os
import sys

import mlx.core as mx


def keep_from_interrupting() -> None:
    """Call it before MLX computes anything: the thread is made then. Processes that are started are as ever."""
    if sys.platform == "linux":
        usual = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        mx.eval(mx.zeros(1) + 1)
        os.sched_setscheduler(0, usual, os.sched_param(0))
