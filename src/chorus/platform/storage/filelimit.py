"""How many files this process may have open: a Mac begins with 256, and mlx_lm takes some away.

mlx_lm sets the limit to 2,048 (hard: 4,096) when it is imported. A server wants more than that, the hard limit can
never be raised again, and where it is lower already the import fails.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from chorus.platform import system

Limits = tuple[int, int]

PLENTY = 16384
"""Enough for whoever serves or watches; more makes programs slow that close every file they might have inherited."""
MAC_FILES = 10240
"""What every Mac's kernel allows a process."""


@contextmanager
def keep_file_limit() -> Iterator[None]:
    """Import mlx_lm inside this: the limit then only ever rises, as far as the hard limit lets it."""
    real = resource.setrlimit

    def raise_only(which: int, limits: Limits) -> None:
        if which == resource.RLIMIT_NOFILE:
            limits = raised(resource.getrlimit(which), limits)
        real(which, limits)

    resource.setrlimit = raise_only
    try:
        yield
    finally:
        resource.setrlimit = real


def raise_file_limit(wanted: int = PLENTY) -> int:
    """Towards what is wanted, as far as hard limit and kernel let it; returns how many files may be open now."""
    current = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = raised(current, (min(wanted, _most_files()), wanted))
    if limits != current:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return wanted if limits[0] == resource.RLIM_INFINITY else limits[0]


def _most_files() -> int:
    """A Mac's hard limit says that there is none, but its kernel has one for each process."""
    if not system.is_mac():
        return sys.maxsize
    told = system.sysctl("kern.maxfilesperproc") or ""
    return int(told) if told.isdigit() else MAC_FILES


def raised(current: Limits, asked: Limits) -> Limits:
    """The asked soft limit where it is higher than ours and allowed; our hard limit as it is."""
    soft, hard = current
    if soft == resource.RLIM_INFINITY:
        return current
    ceiling = asked[0] if hard == resource.RLIM_INFINITY else min(asked[0], hard)
    return max(soft, ceiling), hard
