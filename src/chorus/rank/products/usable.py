"""Whether the kernels work here: tried out once, before anything relies on them."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from chorus import platform
from chorus.platform.cpu.products import REMEDY, WIDTHS, installed

log = logging.getLogger("chorus.rank")

_ROWS, _BLOCKS, _BLOCK = 24, 3, 32
_NEAR = 0.05
"""Of the largest product: several times what rounded activations explain."""


@cache
def usable() -> bool:
    """Also gives the kernels this process's threads. Where they are installed and do not work, a line says why."""
    if platform.device.backend() != "cpu" or not installed():
        return False
    try:
        _try_out()
    except Exception as error:  # whatever a broken installation raises
        why = str(error).strip() or type(error).__name__
        log.warning("packed products do not work here (%s), so float32 it is; %s", why.splitlines()[0], REMEDY)
        return False
    return True


def _try_out() -> None:
    """One row and several, of every width that the kernels hold: each has code of its own for each processor."""
    from chorus.rank.products import kernels
    from chorus.rank.products.packing import Packed, unpack
    from chorus.rank.products.threads import kernel_threads

    kernels.start(kernel_threads())
    random = np.random.default_rng(0)
    x = random.standard_normal((3, _BLOCKS * _BLOCK), np.float32)
    for bits in WIDTHS:
        codes = random.integers(0, 256, (_ROWS, _BLOCKS, _BLOCK * bits // 8), np.uint8)
        scales, shift = random.standard_normal((2, _ROWS, _BLOCKS), np.float32)
        matrix = Packed(bits, _BLOCK, codes, scales, shift)
        kernel, right = kernels.linears([kernels.Matrix(matrix)]), x @ unpack(matrix).T
        for count in (1, len(x)):
            off = np.abs(kernel(x[:count])[0] - right[:count]).max() / np.abs(right).max()
            if not off <= _NEAR:
                raise RuntimeError(f"products of {bits} bits are wrong by {off:.2g} of the largest")
