"""What a module becomes once its parameters are divided: each class here stands in front of the module's own."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from chorus.rank.tensor.shares import Range


class Grouped:
    """A layer of upstream's that speaks with the group; its own class keeps that to the instance."""

    group: mx.distributed.Group


class Summed:
    """A block whose output every rank has computed a part of."""

    group: mx.distributed.Group

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        part = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return mx.distributed.all_sum(part, group=self.group)


class Padded:
    """A matrix that kept foreign columns of a shared quantization group at its ends."""

    foreign: Range

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        widths = [(0, 0)] * (x.ndim - 1) + [self.foreign]
        return super().__call__(mx.pad(x, widths), *args, **kwargs)  # type: ignore[misc]


class WideNorm:
    """A norm over the full width, of which this rank has a part."""

    group: mx.distributed.Group
    width: int

    def __call__(self, x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        squares = mx.distributed.all_sum(wide.square().sum(axis=-1, keepdims=True), group=self.group)
        scale = mx.rsqrt(squares / self.width + self.eps)  # type: ignore[attr-defined]
        return (wide * scale).astype(x.dtype) * self["weight"]  # type: ignore[index]


class SplitVocabulary:
    """Rows of the vocabulary: looking up one gives zeros on all ranks but its owner, logits are gathered."""

    group: mx.distributed.Group
    rows: tuple[Range, ...]
    """The rows that each rank holds."""

    @property
    def own(self) -> Range:
        return self.rows[self.group.rank()]

    def gathered(self, logits: mx.array) -> mx.array:
        widest = max(stop - start for start, stop in self.rows)
        start, stop = self.own
        if stop - start < widest:
            logits = mx.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, widest - (stop - start))])
        everybody = mx.distributed.all_gather(logits[None], group=self.group)
        parts = [everybody[rank, ..., : stop - start] for rank, (start, stop) in enumerate(self.rows)]
        return mx.concatenate(parts, axis=-1)


class SplitHead(SplitVocabulary):
    """A head of which every rank has some rows."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.gathered(super().__call__(x))  # type: ignore[misc]


class SplitEmbedding(SplitVocabulary):
    """An embedding of which every rank has some rows; the head too, where there is no other."""

    def __call__(self, tokens: mx.array) -> mx.array:
        start, stop = self.own
        ours = (tokens >= start) & (tokens < stop)
        found = super().__call__(mx.where(ours, tokens - start, 0))  # type: ignore[misc]
        return mx.distributed.all_sum(mx.where(ours[..., None], found, mx.zeros_like(found)), group=self.group)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.gathered(super().as_linear(x))  # type: ignore[misc]
