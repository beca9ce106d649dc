"""How many threads the BLAS gets beside the kernels, found out by trying.

Both have a pool of their own, and a pool's threads wait for work with their eyes open: on few cores each takes the
other's. What MLX multiplies itself then, attention, is small, and often faster with one thread.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from chorus import platform
from chorus.platform import blas
from chorus.rank.products.kernels import Kernel, Matrix, linears
from chorus.rank.products.packing import Packed

log = logging.getLogger("chorus.rank")

_ROUNDS = 5
_SECONDS = 0.2
"""No further round begins after these: threads that are in each other's way can take a second for a few milliseconds'
work."""
_ROWS = 64
_WIDTH, _BLOCK = 1024, 64
_HEADS, _HEAD, _KEYS = 2, 64, 512
_GAIN = 0.95
"""The part of the time that fewer threads may take at most: the noise of a short trial decides nothing."""


def share_threads() -> None:
    """Try a prompt's attention and a product in turn, with each number of threads for the BLAS; keep the fastest."""
    most = platform.rank_threads()
    if blas.get_threads() is None or most < 2:
        return
    kernel = _product()
    queries, keys = mx.zeros((_HEADS, _ROWS, _HEAD)), mx.zeros((_HEADS, _HEAD, _KEYS))
    rows = np.zeros((_ROWS, kernel.width), np.float32)
    mx.eval(queries, keys)

    def turn() -> None:
        mx.eval(mx.softmax(queries @ keys, axis=-1) @ keys.swapaxes(-1, -2))
        kernel(rows)

    seconds: dict[int, list[float]] = {threads: [] for threads in _candidates(most)}
    until = time.perf_counter() + _SECONDS
    for _ in range(_ROUNDS):
        if time.perf_counter() > until:
            break
        for threads, spent in seconds.items():
            blas.set_threads(threads)
            started = time.perf_counter()
            turn()
            spent.append(time.perf_counter() - started)
    medians = {threads: statistics.median(spent) for threads, spent in seconds.items()}
    chosen = choose(medians, most)
    blas.set_threads(chosen)
    tried = ", ".join(f"{threads} in {1000 * spent:.1f} ms" for threads, spent in medians.items())
    log.info("the BLAS has %d of %d threads beside packed products (tried %s)", chosen, most, tried)


def _product() -> Kernel:
    blocks = _WIDTH // _BLOCK
    codes = np.full((_WIDTH, blocks, _BLOCK // 2), 0x77, np.uint8)
    ones = np.ones((_WIDTH, blocks), np.float32)
    return linears([Matrix(Packed(4, _BLOCK, codes, ones, ones))])


def choose(seconds: dict[int, float], most: int) -> int:
    best = min(seconds, key=lambda threads: seconds[threads])
    return best if seconds[best] <= _GAIN * seconds[most] else most


def _candidates(most: int) -> Sequence[int]:
    return sorted({most, (most + 1) // 2, 1}, reverse=True)
