"""What differs between systems and accelerators; importing this package imports no MLX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chorus.platform import system
from chorus.platform.accelerator import device
from chorus.platform.accelerator.device import Backend
from chorus.platform.accelerator.kernels import keep_kernels
from chorus.platform.cpu import blas as blas_library
from chorus.platform.cpu import cores
from chorus.platform.cpu.blas import Blas
from chorus.platform.cpu.scratch import use_own_scratch
from chorus.platform.storage.filelimit import keep_file_limit

__all__ = ["Prepared", "keep_file_limit", "prepare"]


@dataclass(frozen=True)
class Prepared:
    backend: Backend
    threads: int
    blas: Blas | None  # None where MLX needs none from us: Metal, CUDA, macOS


def rank_threads() -> int:
    """How many threads this process has; all cores where it was not prepared."""
    given = os.environ.get(blas_library.THREAD_VARIABLES[0], "")
    return int(given) if given.isdigit() and int(given) else cores.usable_cores()


def use_threads(threads: int) -> None:
    """From now on this process has so many."""
    for variable in blas_library.THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def most_threads() -> int:
    """How many this process may have at most, where trying shows that more are better."""
    return max(_Most.threads, rank_threads())


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Meanwhile this process may have no more threads than it has."""
    most, _Most.threads = _Most.threads, 0
    try:
        yield
    finally:
        _Most.threads = most


class _Most:
    """As global as the variables that hold the number of threads."""

    threads = 0


def prepare(threads: int | None = None, ranks_here: int = 1, most: int | None = None) -> Prepared:
    """The one call that every rank process makes before its first import of MLX.

    Without `threads`, this machine's cores are divided among the ranks that run on it. With `most`, so many threads may
    be tried later. Import mlx_lm inside `keep_file_limit()` afterwards.
    """
    _Most.threads = most or 0
    backend = device.backend()
    count = threads if threads is not None else cores.threads_per_rank(cores.usable_cores(), ranks_here)
    if count < 1:
        raise ValueError(f"a rank needs at least 1 thread, not {count}")
    if backend == "cpu" and system.is_linux():
        use_own_scratch()
        return Prepared(backend, count, blas_library.take_over(count))
    if backend == "cuda":
        keep_kernels()
    use_threads(count)
    return Prepared(backend, count, None)
