"""Layers whose products the kernels compute. They have no parameters: the kernels hold them.

Each call crosses from MLX to a kernel and back, and computes whatever its input still waits for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from chorus.rank.products.kernels import Kernel
from chorus.rank.products.packing import Floats
from chorus.rank.products.shared import Shared
from chorus.rank.upstream.forms import Table
from chorus.rank.upstream.weights import QuantizedSwitchLinear, SwitchLinear

Integers = NDArray[np.integer]


class KernelLinear(nn.Module):
    """In place of a linear layer."""

    shared: Shared
    place: int

    def __call__(self, x: mx.array) -> mx.array:
        return self.shared.product(self.place, x)


class KernelSummedLinear(KernelLinear):
    """In place of mlx-lm's linear layer over a part of the columns: the group's products are summed."""

    group: mx.distributed.Group

    def __call__(self, x: mx.array) -> mx.array:
        x = mx.distributed.all_sum(super().__call__(x), group=self.group)
        return x + self["bias"] if "bias" in self else x


class KernelEmbedding(nn.QuantizedEmbedding):
    """Quantized rows are looked up as MLX does it; a head that is tied to them is a product like any other."""

    head: Kernel

    def as_linear(self, x: mx.array) -> mx.array:
        return cross(self.head, x, [0])[0]


class KernelHead(nn.Module):
    """In place of an embedding that is a tied head and nothing else: the tokens are looked up on another stage."""

    head: Kernel

    def __call__(self, tokens: mx.array) -> mx.array:
        """What a stage that is not the first makes of tokens, and never computes. It reads as NaN, so that it would
        show if it ever reached a result.
        """
        return mx.full((*tokens.shape, self.head.width), mx.nan)

    def as_linear(self, x: mx.array) -> mx.array:
        return cross(self.head, x, [0])[0]


class KernelExperts(nn.Module):
    """In place of the linear layers of experts: each expert that is asked for multiplies its own rows."""

    experts: Sequence[Kernel]

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        *batch, rows, width = x.shape
        # As gather_qmm has it: inputs and choices are broadcast over each other.
        places, chosen = np.broadcast_arrays(np.arange(math.prod(batch)).reshape(batch), np.array(indices))
        made = by_expert(self.experts, as_rows(x, (-1, rows, width)), places, chosen)
        return mx.array(made).reshape(*chosen.shape, rows, -1)


class KernelMlp:
    """In front of an MLP whose products and what lies between them are one graph."""

    kernel: Kernel

    def __call__(self, x: mx.array) -> mx.array:
        return cross(self.kernel, x, [0])[0]


class KernelMlps:
    """In front of experts each of which is one graph."""

    experts: Sequence[Kernel]

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        rows = as_rows(x, (-1, 1, x.shape[-1]))
        places = np.repeat(np.arange(len(rows)), indices.shape[-1])
        return mx.array(by_expert(self.experts, rows, places, np.array(indices))).reshape(*indices.shape, -1)


def by_expert(experts: Sequence[Kernel], rows: Floats, places: Integers, chosen: Integers) -> Floats:
    """For each choice what its expert makes of the rows at its place."""
    places, chosen = places.reshape(-1), chosen.reshape(-1)
    order = np.argsort(chosen, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1)
    made = np.empty((len(chosen), rows.shape[1], experts[0].rows), np.float32)
    for run in runs:
        own = rows[places[run]]
        (part,) = experts[int(chosen[run[0]])](own.reshape(-1, own.shape[-1]))
        made[run] = part.reshape(len(run), rows.shape[1], -1)
    return made


def as_rows(x: mx.array, shape: tuple[int, ...]) -> Floats:
    return np.array(x.astype(mx.float32).reshape(shape), copy=False)


def cross(kernel: Kernel, x: mx.array, places: Sequence[int]) -> list[mx.array]:
    rows = as_rows(x, (-1, kernel.width))
    made = kernel(rows) if len(places) == kernel.count else kernel.some(rows, places)
    return [mx.array(part).reshape(*x.shape[:-1], -1) for part in made]


def shared_by(kernel: Kernel) -> Shared:
    """For the layers whose products a kernel computes."""
    return Shared(kernel.count, lambda places, x: cross(kernel, x, places))


PACKED_FORMS: Table = {
    nn.QuantizedLinear: KernelLinear,
    nn.QuantizedAllToShardedLinear: KernelLinear,
    nn.QuantizedShardedToAllLinear: KernelSummedLinear,
    nn.QuantizedEmbedding: KernelEmbedding,
    QuantizedSwitchLinear: KernelExperts,
}
"""Which of MLX's quantized modules the kernels take over. Without an entry here, MLX computes as it does."""
LAID_OUT_FORMS: Table = {
    nn.Linear: KernelLinear,
    nn.AllToShardedLinear: KernelLinear,
    nn.ShardedToAllLinear: KernelSummedLinear,
    nn.Embedding: KernelHead,
    SwitchLinear: KernelExperts,
}
"""Which of its plain ones."""
