"""How many cores this process may really use, and how ranks on one machine divide them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from chorus.platform import cgroup, system


def usable_cores() -> int:
    """Physical cores where known: two threads of one core share the unit that matrix products need."""
    if sys.platform == "linux" and system.is_linux():
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return fewest_cores(allowed, psutil.cpu_count(logical=False), cgroup.cpu_quota(Path("/")))


def fewest_cores(allowed: int, physical: int | None, quota: float | None) -> int:
    limits = [allowed]
    if physical:
        limits.append(physical)
    if quota is not None:
        limits.append(int(quota))
    return max(1, min(limits))


def threads_per_rank(cores: int, ranks: int) -> int:
    """One core is left to the front end, unless a trial shows that all are better: a BLAS with a thread on every core
    can fall to a fraction of its speed as soon as anything else runs (measured on two cores: 0.4 ms with one thread, 16
    to 37 ms with two)."""
    return most_threads(cores - 1, ranks)


def most_threads(cores: int, ranks: int) -> int:
    """So many for each rank have a core each."""
    if ranks < 1:
        raise ValueError(f"a machine runs at least 1 rank, not {ranks}")
    return max(1, cores // ranks)
