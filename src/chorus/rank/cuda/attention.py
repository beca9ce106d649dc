"""Puts the kernel in front of MLX's own attention, for what MLX would compute in parts.

It stands where MLX has the function, so that every model's attention passes here. Whatever the kernel is not made for,
and masks that nobody knows, go on to MLX.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, cast

import mlx.core as mx

from chorus.rank.cuda import kernel
from chorus.rank.cuda.kernel import Shape
from chorus.rank.cuda.masks import Meaning, meaning

log = logging.getLogger("chorus.rank")

Attend = Callable[..., mx.array]

TOLERANCE = 0.05
"""Between the kernel and MLX, both in half precision, on numbers around 1."""

_TRIED_ROWS = (3, 70, 41)


class Attention:
    """MLX's function, and the kernel before it."""

    def __init__(self, own: Attend, attend: Attend = kernel.attend) -> None:
        self._own = own
        self._attend = attend
        self._shapes: dict[Hashable, Shape | None] = {}

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        mask: Any = None,
        sinks: mx.array | None = None,
        **options: Any,
    ) -> mx.array:
        known = meaning(mask)
        shape = self._shape(q, k, v, known, sinks) if known and not options else None
        if known is None or shape is None:
            return self._own(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)
        rows = known.lengths
        return self._attend(q, k, v, rows.array, shape=shape, scale=scale, longest=rows.longest, sinks=sinks)

    def _shape(self, q: mx.array, k: mx.array, v: mx.array, known: Meaning, sinks: mx.array | None) -> Shape | None:
        """What the kernel is asked for; None where it is not made for it, or the mask not for these arrays."""
        asked, held, lengths = q.shape, k.shape, known.lengths
        if asked[2] != known.queries or asked[0] != len(lengths.values) or held[2] != lengths.longest:
            return None
        kind = asked[1:], held[1], v.shape[3], q.dtype, k.dtype, v.dtype, known.window, sinks is None
        if kind not in self._shapes:
            self._shapes[kind] = self._usable(_shape(q, k, v, known.window, sinks))
        return self._shapes[kind]

    def _usable(self, shape: Shape | None) -> Shape | None:
        """Tried once for every shape, on a few numbers: a kernel that cannot be compiled here ends nobody's request."""
        return shape if shape and shape.fits and self._try(shape) else None

    def _try(self, shape: Shape) -> bool:
        try:
            off = max(self._distance(shape, parts) for parts in (1, 2))
        except (RuntimeError, ValueError) as error:
            log.warning("attention over unequal rows is left to MLX: no kernel for %s (%s)", shape, error)
            return False
        if not off < TOLERANCE:
            log.warning("attention over unequal rows is left to MLX: the kernel for %s is off by %.3g", shape, off)
            return False
        return True

    def _distance(self, shape: Shape, parts: int) -> float:
        """Between what the kernel and MLX make of the same random numbers."""
        rows, longest, key = len(_TRIED_ROWS), max(_TRIED_ROWS) + shape.queries, mx.random.key(0)
        lengths = [row + shape.queries for row in _TRIED_ROWS]

        def numbers(*size: int) -> mx.array:
            return mx.random.normal(size, key=key).astype(shape.dtype)

        q = numbers(rows, shape.heads * shape.group, shape.queries, shape.width)
        k = numbers(rows, shape.heads, longest, shape.width)
        v = numbers(rows, shape.heads, longest, shape.value_width)
        sinks = numbers(shape.heads * shape.group) if shape.sinks else None
        scale = shape.width**-0.5
        asking = mx.array(lengths)[:, None, None, None] - shape.queries + mx.arange(shape.queries)[:, None]
        seen = asking >= mx.arange(longest)
        if shape.window:
            seen = seen & (asking < mx.arange(longest) + shape.window)
        expected = self._own(q, k, v, scale=scale, mask=seen, sinks=sinks)
        array = mx.array(lengths, dtype=mx.int32)
        made = self._attend(q, k, v, array, shape=shape, scale=scale, longest=longest, sinks=sinks, parts=parts)
        distance = mx.abs(made.astype(mx.float32) - expected.astype(mx.float32)).max()
        return cast(float, distance.item())


def _shape(q: mx.array, k: mx.array, v: mx.array, window: int, sinks: mx.array | None) -> Shape | None:
    _, heads, queries, width = q.shape
    if heads % k.shape[1] or not q.dtype == k.dtype == v.dtype:
        return None
    return Shape(q.dtype, width, v.shape[3], k.shape[1], heads // k.shape[1], queries, window, sinks is not None)
