"""How many threads the kernels get, and how many the BLAS beside them, found out by trying.

Both have a pool of their own, and a pool's threads wait for work with their eyes open: on few cores each takes the
other's. What MLX multiplies itself then, attention, is small, and often faster with one thread.
"""

from __future__ import annotations

import logging

import mlx.core as mx
import numpy as np

from chorus import platform
from chorus.platform.cpu import blas, trials
from chorus.platform.cpu.beside import FrontEndWork
from chorus.rank.products.kernels import Kernel, Matrix, linears
from chorus.rank.products.packing import Packed

log = logging.getLogger("chorus.rank")

_ROUNDS = 5
_SECONDS = 0.2
_ROWS = 64
_WIDTH, _BLOCK = 1024, 64
_HEADS, _HEAD, _KEYS = 2, 64, 512
_FEW_ROWS, _PRODUCTS = 4, 32
"""A token of each of a few streams through some layers: about what lies between two tokens that clients are sent."""


def kernel_threads() -> int:
    """As many as this process has; where it may have more, whichever number multiplies fastest beside work like the
    front end's. To be asked before the first kernel: their pool never changes.
    """
    usual, most = platform.rank_threads(), platform.most_threads()
    if most <= usual:
        return usual
    with FrontEndWork() as front_end:

        def turn(threads: int) -> None:
            kernel = tried[threads]
            front_end.tell(_FEW_ROWS)
            for _ in range(_PRODUCTS):
                kernel(rows)

        tried = {threads: _product(threads) for threads in trials.candidates(most)}
        rows = np.zeros((_FEW_ROWS, _WIDTH), np.float32)
        seconds = trials.medians([turn], tried, _ROUNDS, _SECONDS)
    chosen = trials.choose(seconds, usual)
    platform.use_threads(chosen)
    log.info("packed products have %d of %d threads (tried %s)", chosen, most, trials.told(seconds, tried))
    return chosen


def share_threads() -> None:
    """Try a prompt's attention and a product in turn, with each number of threads for the BLAS; keep the fastest."""
    most = platform.rank_threads()
    if blas.get_threads() is None or most < 2:
        return
    kernel = _product()
    queries, keys = mx.zeros((_HEADS, _ROWS, _HEAD)), mx.zeros((_HEADS, _HEAD, _KEYS))
    rows = np.zeros((_ROWS, kernel.width), np.float32)
    mx.eval(queries, keys)

    def turn(threads: int) -> None:
        blas.set_threads(threads)
        mx.eval(mx.softmax(queries @ keys, axis=-1) @ keys.swapaxes(-1, -2))
        kernel(rows)

    numbers = trials.candidates(most)
    seconds = trials.medians([turn], numbers, _ROUNDS, _SECONDS)
    chosen = trials.choose(seconds, most)
    blas.set_threads(chosen)
    tried = trials.told(seconds, numbers)
    log.info("the BLAS has %d of %d threads beside packed products (tried %s)", chosen, most, tried)


def _product(threads: int | None = None) -> Kernel:
    """One that has so many threads to itself; None: those of all kernels."""
    blocks = _WIDTH // _BLOCK
    codes = np.full((_WIDTH, blocks, _BLOCK // 2), 0x77, np.uint8)
    ones = np.ones((_WIDTH, blocks), np.float32)
    return linears([Matrix(Packed(4, _BLOCK, codes, ones, ones))], threads)
