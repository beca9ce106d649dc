"""Products with quantized weights on CUDA, whose inputs MLX takes for as many single rows as a batch has.

It multiplies a batch of single tokens, (rows, 1, width), row by row, each time with the whole matrix; as one matrix of
rows the same product of 32 takes a fifteenth of the time on an H200. It has a kernel for several rows from eight on, so
that fewer are filled up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

Product = Callable[..., mx.array]

LEAST_ROWS = 8
"""Of MLX's kernel for several rows."""


class RowsTogether:
    """MLX's function, given all rows as one matrix."""

    def __init__(self, own: Product) -> None:
        self._own = own

    def __call__(self, x: mx.array, w: mx.array, /, *arguments: Any, **options: Any) -> mx.array:
        *batch, width = x.shape
        rows = math.prod(batch)
        if rows < 2 or w.ndim != 2:
            return self._own(x, w, *arguments, **options)
        together = x.reshape(1, rows, width)
        if rows < LEAST_ROWS:
            together = mx.pad(together, [(0, 0), (0, LEAST_ROWS - rows), (0, 0)])
        made = self._own(together, w, *arguments, **options)
        if rows < LEAST_ROWS:
            made = made[:, :rows]
        return made.reshape(*batch, made.shape[-1])
