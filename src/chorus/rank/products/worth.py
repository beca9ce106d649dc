"""Which plain products a CPU's kernels are worth: large ones, since crossing to a kernel and back costs time too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.rank.products.shared import Sizes, sizes_of
from chorus.rank.upstream.forms import innermost
from chorus.rank.upstream.weights import PLAIN_FORMS

LEAST = 1 << 20
"""Numbers that a kernel for a few rows must have inside. With one thread, at 1 to 16 rows, 0.5 million (q, k and v of a
layer 512 wide) took as long as with the BLAS, 2.4 million (its MLP) two thirds."""


def worth(layers: Sequence[Sizes]) -> bool:
    """Whether one kernel for these layers, or for one expert of each, is quicker than the BLAS."""
    return sum(sizes.takes * sizes.gives for sizes in layers) >= LEAST


def is_plain(layer: nn.Module) -> bool:
    """Whether it is a layer that the kernels could multiply with as it is."""
    weight = layer.get("weight")
    return (
        innermost(type(layer)) in PLAIN_FORMS.values() and isinstance(weight, mx.array) and weight.dtype == mx.float32
    )


def any_worth(model: nn.Module, *, head_only: bool) -> bool:
    """Whether some module may have layers that are; to be asked before the kernels are imported."""
    return any(_may_be_worth(module, head_only) for _, module in model.named_modules())


def _may_be_worth(module: nn.Module, head_only: bool) -> bool:
    children: list[Any] = [child for child in module.values() if isinstance(child, nn.Module) and is_plain(child)]
    return worth([sizes_of(child) for child in children if head_only or not isinstance(child, nn.Embedding)])
