"""What differs between systems and accelerators; importing this package imports no MLX."""

from __future__ import annotations

import os
from dataclasses import dataclass

from chorus.platform import blas as blas_library
from chorus.platform import cores, device, system
from chorus.platform.blas import Blas
from chorus.platform.device import Backend
from chorus.platform.filelimit import keep_file_limit
from chorus.platform.scratch import use_own_scratch

__all__ = ["Prepared", "keep_file_limit", "prepare"]


@dataclass(frozen=True)
class Prepared:
    backend: Backend
    threads: int
    blas: Blas | None  # None where MLX needs none from us: Metal, CUDA, macOS


def rank_threads() -> int:
    """How many threads this process was prepared for; all cores where it was not."""
    given = os.environ.get(blas_library.THREAD_VARIABLES[0], "")
    return int(given) if given.isdigit() and int(given) else cores.usable_cores()


def prepare(threads: int | None = None, ranks_here: int = 1) -> Prepared:
    """The one call that every rank process makes before its first import of MLX.

    Without `threads`, this machine's cores are divided among the ranks that run on it. Import mlx_lm inside
    `keep_file_limit()` afterwards.
    """
    backend = device.backend()
    count = threads if threads is not None else cores.threads_per_rank(cores.usable_cores(), ranks_here)
    if count < 1:
        raise ValueError(f"a rank needs at least 1 thread, not {count}")
    if backend == "cpu" and system.is_linux():
        use_own_scratch()
        return Prepared(backend, count, blas_library.take_over(count))
    for variable in blas_library.THREAD_VARIABLES:
        os.environ[variable] = str(count)
    return Prepared(backend, count, None)
