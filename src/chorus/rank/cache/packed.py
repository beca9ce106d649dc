"""Keys and values in 8 or 4 bits a number: those of a token in groups that share a scale and an offset.

A prompt attends to keys and values that are unpacked for it, one layer at a time, since products with packed ones take
several times as long there. A single token attends to packed ones where the model lets it: to unpack a whole cache for
it takes longer than its attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.errors import ChorusError
from chorus.rank.cache.rows import Lengths, Rows
from chorus.rank.upstream import decoders

GROUPS = (64, 32)
"""How many numbers may share a scale: the first of these that divides the width of keys and values."""

WHOLE = "leave --kv-bits out"


class CannotPack(ChorusError, ValueError):
    """The keys and values of this model cannot be packed: says why, and the remedy."""


@dataclass(frozen=True)
class Packing:
    bits: int
    direct: bool
    """Whether single tokens attend to packed keys and values."""


class _Packed(Rows):
    """A token's arrays are packed keys, their scales and offsets, and the same of its values. Arrays without a width,
    which ghosts have, are what they are.
    """

    def __init__(self, packing: Packing, lengths: Sequence[int]) -> None:
        super().__init__(lengths)
        self.packing = packing
        self._lent_packed = False

    @property
    def bits(self) -> int:
        """Upstream's attention takes keys and values as packed when their cache has this attribute."""
        if not self._lent_packed:
            raise AttributeError("what was fetched last is not packed")
        return self.packing.bits

    @property
    def group_size(self) -> int:
        packed, scales = self.arrays[:2]
        return packed.shape[-1] * 32 // self.packing.bits // scales.shape[-1]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the next tokens; all keys and values up to the end of the longest row, packed only for one token."""
        group = _group(keys.shape[-1], values.shape[-1])
        self.append([*self._pack(keys, group), *self._pack(values, group)])
        self._lent_packed = self.packing.direct and keys.shape[2] == 1 and keys.shape[-1] > 0
        return self._sides(self._filled()) if self._lent_packed else self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        return self._unpacked(self._filled())

    def newest(self, count: int) -> tuple[mx.array, mx.array]:
        """The keys and values of each row's last `count` tokens."""
        return self._unpacked(self._newest(count))

    def _pack(self, tokens: mx.array, group: int) -> Sequence[mx.array]:
        if tokens.size == 0:
            return (tokens,)
        packed: tuple[mx.array, ...] = mx.quantize(tokens, group_size=group, bits=self.packing.bits)
        return packed

    def _unpacked(self, arrays: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        keys, values = self._sides(arrays)
        return self._unpack(keys), self._unpack(values)

    def _unpack(self, side: Sequence[mx.array]) -> mx.array:
        if len(side) == 1:
            return side[0]
        packed, scales, offsets = side
        return mx.dequantize(packed, scales, offsets, group_size=self.group_size, bits=self.packing.bits)

    @staticmethod
    def _sides(arrays: Sequence[mx.array]) -> tuple[tuple[mx.array, ...], tuple[mx.array, ...]]:
        of_keys = 3 if arrays[0].dtype == mx.uint32 else 1
        return tuple(arrays[:of_keys]), tuple(arrays[of_keys:])


class PackedCache(_Packed):
    """The keys and values of one sequence, or of several equally long ones side by side."""

    def __init__(self, packing: Packing) -> None:
        super().__init__(packing, [0])

    def fill(self, arrays: Sequence[mx.array], length: int) -> None:
        """Hold these arrays, of which so many places are filled."""
        self.arrays = list(arrays)
        self.lengths = Lengths([length])

    @staticmethod
    def merge(singles: Sequence[PackedCache]) -> PackedRows:
        """Single sequences, which stay as they are, as the rows of one batch."""
        rows = PackedRows(singles[0].packing, [single.lengths.longest for single in singles])
        rows._stack([single.arrays for single in singles])
        return rows


class PackedRows(_Packed):
    """The keys and values of a batch."""

    def extract(self, row: int) -> PackedCache:
        """A row as a single sequence, whose arrays are slices of these."""
        single = PackedCache(self.packing)
        if self.arrays:
            single.fill(self._row(row), self.lengths.values[row])
        return single


def packing_of(model: nn.Module, bits: int) -> Packing:
    """How a model's keys and values are packed, found by building forwards that are never computed."""
    for entry in decoders.leaves(decoders.make_prompt_cache(model)):
        if not isinstance(entry, decoders.KVCache):
            raise CannotPack(f"--kv-bits {bits} cannot be used: this model has {_described(entry)}; {WHOLE}")
    _build_forward(model, Packing(bits, direct=False), 2)
    direct = Packing(bits, direct=True)
    try:
        _build_forward(model, direct, 1)
    except Exception:
        # Whatever a model does with what it fetches, it is not made for packed arrays.
        return Packing(bits, direct=False)
    return direct


def packed(cache: list[Any], packing: Packing) -> list[Any]:
    """A fresh cache with packed keys and values."""
    return [_packed_entry(entry, packing) for entry in cache]


def _packed_entry(entry: Any, packing: Packing) -> Any:
    if isinstance(entry, decoders.CacheList):
        return decoders.CacheList(*(_packed_entry(part, packing) for part in entry.caches))
    return PackedCache(packing)


def _build_forward(model: nn.Module, packing: Packing, tokens: int) -> None:
    cache = packed(decoders.make_prompt_cache(model), packing)
    try:
        model(mx.zeros((1, tokens), dtype=mx.int32), cache=cache)
    except CannotPack:
        raise
    except Exception as error:
        raise CannotPack(
            f"--kv-bits {packing.bits} cannot be used: this model reads its cache in a way of its own"
            f" ({type(error).__name__}: {error}); {WHOLE}"
        ) from error


def _group(*widths: int) -> int:
    for group in GROUPS:
        if all(width % group == 0 for width in widths):
            return group
    raise CannotPack(
        f"--kv-bits cannot be used: keys and values of {' and '.join(map(str, sorted(set(widths))))} numbers are no"
        f" multiple of {GROUPS[-1]}; {WHOLE}"
    )


def _described(entry: Any) -> str:
    if isinstance(entry, decoders.RotatingKVCache | decoders.ChunkedKVCache):
        return "windows, whose keys and values stay as they are"
    if isinstance(entry, decoders.ArraysCache):
        return "recurrent states, which cannot be packed"
    return f"a cache of its own kind ({type(entry).__name__})"
