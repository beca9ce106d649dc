"""mlx_lm sets the limit of open files to 2,048 (hard: 4,096) when it is imported.

A server wants more than that, the hard limit can never be raised again, and where it is lower already the import fails.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

Limits = tuple[int, int]


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


def raise_file_limit(wanted: int) -> int:
    """Towards what is wanted, as far as the hard limit lets it; returns how many files may be open now."""
    limits = raised(resource.getrlimit(resource.RLIMIT_NOFILE), (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return wanted if limits[0] == resource.RLIM_INFINITY else limits[0]


def raised(current: Limits, asked: Limits) -> Limits:
    """The asked soft limit where it is higher than ours and allowed; our hard limit as it is."""
    soft, hard = current
    if soft == resource.RLIM_INFINITY:
        return current
    ceiling = asked[0] if hard == resource.RLIM_INFINITY else min(asked[0], hard)
    return max(soft, ceiling), hard
