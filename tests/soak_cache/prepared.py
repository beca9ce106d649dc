"""Makes a program one that computes as a rank does: the first thing that each of them here does."""

from __future__ import annotations

import functools
import os

from chorus import platform
from chorus.rank.upstream import lean


@functools.cache
def prepare() -> None:
    """Call it before MLX is imported."""
    # On a CPU a C++ compiler would run for every function that upstream compiles.
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    platform.prepare(1)
    lean.install()
    # Only now may MLX be imported: its BLAS has been taken over.
    from tests.support import device_thread

    device_thread.keep_from_interrupting()
