"""Which part of a stored array a rank keeps. The same cut serves an array in memory and one on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from chorus.planning.split import SplitError
from chorus.rank.tensor.shares import Range

MATRIX = ("weight", "scales", "biases")
"""The arrays of a linear layer that have a row for each output; all but the first belong to quantized layers."""


@dataclass(frozen=True)
class Cut:
    """Ranges of one axis, counted in entries of the array as it is stored: packed words where it is packed."""

    axis: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Columns:
    """The input columns a rank keeps, and how many foreign ones come with them at either end: a quantization group
    that belongs to two ranks is kept by both, and its foreign columns are fed zeros.
    """

    cuts: dict[str, Cut]
    foreign: Range


def take(array: mx.array, cut: Cut) -> mx.array:
    before = (slice(None),) * cut.axis
    parts = [array[(*before, slice(start, stop))] for start, stop in cut.ranges]
    return mx.contiguous(parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=cut.axis))


def matrix_rows(module: nn.Module) -> int:
    return int(module["weight"].shape[-2])


def matrix_columns(module: nn.Module) -> int:
    packed = int(module["weight"].shape[-1])
    return packed * 32 // module.bits if "scales" in module else packed


def column_unit(module: nn.Module) -> int:
    """How many input columns can only be kept together."""
    return int(module.group_size) if "scales" in module else 1


def row_cuts(module: nn.Module, ranges: Sequence[Range]) -> dict[str, Cut]:
    """The cuts that divide outputs: rows of the matrix, entries of the bias."""
    arrays = _arrays(module)
    cuts = {name: Cut(array.ndim - 2, tuple(ranges)) for name, array in arrays.items() if name in MATRIX}
    if "bias" in arrays:
        cuts["bias"] = Cut(arrays["bias"].ndim - 1, tuple(ranges))
    return cuts


def column_cuts(module: nn.Module, columns: Range) -> Columns:
    """The cuts that divide inputs, in whole quantization groups. The bias is no input's: whoever sums adds it once."""
    unit = column_unit(module)
    start, stop = columns
    first, last = start // unit, -(-stop // unit)
    arrays = _arrays(module)
    groups = matrix_columns(module) // unit
    cuts = {}
    for name in MATRIX:
        if name in arrays:
            # Entries per group: the packed words of a weight, one of a scale.
            width = arrays[name].shape[-1] // groups
            cuts[name] = Cut(arrays[name].ndim - 1, ((first * width, last * width),))
    return Columns(cuts, (start - first * unit, last * unit - stop))


def stack_cuts(module: nn.Module, ranges: Sequence[Range]) -> dict[str, Cut]:
    """The cuts that keep whole matrices, of a module that has one for each head."""
    return {name: Cut(0, tuple(ranges)) for name in _arrays(module)}


def _arrays(module: nn.Module) -> dict[str, mx.array]:
    arrays = {name: value for name, value in module.items() if isinstance(value, mx.array)}
    if unknown := arrays.keys() - {*MATRIX, "bias", "global_scale"}:
        raise SplitError(
            f"a {type(module).__name__} holds {sorted(unknown)[0]}, which no cut is known for: use --parallel pipeline"
        )
    return arrays
