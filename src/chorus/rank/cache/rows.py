"""The keys and values of a batch, a row for each sequence.

Every row begins at place 0 and has a length of its own, so to forget a row's last tokens is arithmetic. While all rows
are equally long, they are written and read as a single sequence is: by slices, and without an array for a mask, which
would cost an accelerator its fused attention.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, cast

import mlx.core as mx

from chorus.messages.rank import CACHE_STEP
from chorus.rank.cuda.masks import Meaning, note
from chorus.rank.upstream import decoders

STEP = CACHE_STEP

Block = tuple[Sequence[mx.array], int, int]
"""Arrays, how many rows they have, and how many of their places are filled at most."""


class Lengths:
    """How long the rows of a batch are, and the arrays that follow from it.

    Layers whose rows are equally long share one object: each array is made once for all of them.
    """

    def __init__(self, values: Iterable[int]) -> None:
        self.values = tuple(values)
        self.longest = max(self.values)
        self.equal = min(self.values) == self.longest
        self._places: dict[int, mx.array] = {}
        self._spread: dict[tuple[int, ...], mx.array] = {}
        self._masks: dict[tuple[int, int | None], mx.array] = {}
        # Weak, or a cache that is never written would hold all that came after it.
        self._after: tuple[int, weakref.ref[Lengths]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    @cached_property
    def array(self) -> mx.array:
        """One number per row."""
        return mx.array(self.values, dtype=mx.int32)

    def after(self, count: int) -> Lengths:
        """The lengths when every row has `count` tokens more: the same object for all layers that come to them."""
        if self._after and self._after[0] == count and (shared := self._after[1]()):
            return shared
        lengths = Lengths([length + count for length in self.values])
        self._after = count, weakref.ref(lengths)
        return lengths

    def places(self, count: int) -> mx.array:
        """Where the next `count` tokens of each row go: (rows, 1, count, 1)."""
        if count not in self._places:
            starts = mx.expand_dims(self.array, (1, 2, 3))
            self._places[count] = starts if count == 1 else starts + mx.arange(count)[:, None]
        return self._places[count]

    def places_of(self, tokens: mx.array) -> mx.array:
        """Where each number of these tokens goes."""
        shape = tokens.shape
        if shape not in self._spread:
            self._spread[shape] = mx.broadcast_to(self.places(shape[2]), shape)
        return self._spread[shape]

    def mask(self, count: int, window: int | None) -> mx.array:
        """What the next `count` tokens of each row may look at."""
        if (count, window) not in self._masks:
            asking, places = self.places(count), mx.arange(self.longest + count)
            seen = asking >= places
            mask = seen if window is None else seen & (asking < places + window)
            self._masks[count, window] = note(mask, Meaning(self.after(count), count, window or 0))
        return self._masks[count, window]


def share_lengths(layers: Iterable[Rows]) -> None:
    """Layers whose rows are equally long have one object for it from now on."""
    known: dict[Lengths, Lengths] = {}
    for rows in layers:
        rows.lengths = known.setdefault(rows.lengths, rows.lengths)


class Rows:
    """What rows of any form have in common: how long they are, and arrays of the shape (rows, heads, places, width)."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = Lengths(lengths)
        self.arrays: list[mx.array] = []
        """Nothing until the first tokens are written."""

    @property
    def offset(self) -> int | mx.array:
        """The place of the next token: one number where it is the same for all rows, else an array of one per row."""
        return self.lengths.longest if self.lengths.equal else self.lengths.array

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """What the next `count` tokens of each row may look at."""
        if self.lengths.equal:
            mask: mx.array | str | None = decoders.create_attention_mask(
                count, self.lengths.longest, return_array, window_size
            )
            return mask
        return self.lengths.mask(count, window_size)

    def append(self, new: Sequence[mx.array]) -> None:
        """Write the next tokens of every row, the same number for each."""
        count = new[0].shape[2]
        room = room_for(self.lengths.longest + count)
        held = self.arrays or [array[:, :, :0] for array in new]
        self.arrays = [
            self._written(widened(array, room), tokens, count) for array, tokens in zip(held, new, strict=True)
        ]
        self.lengths = self.lengths.after(count)

    def is_trimmable(self) -> bool:
        """Every cache has this method: by it one is told from other values."""
        return True

    def trim_row(self, row: int, count: int) -> None:
        """One row forgets its last `count` tokens."""
        lengths = list(self.lengths.values)
        lengths[row] -= count
        self.lengths = Lengths(lengths)

    def filter(self, rows: mx.array) -> None:
        """Only these rows stay, in this order; the room that only others needed goes with them."""
        self.lengths = Lengths([self.lengths.values[row] for row in cast(list[int], rows.tolist())])
        room = room_for(self.lengths.longest)
        self.arrays = [array[:, :, :room][rows] for array in self.arrays]

    def extend(self, other: Rows) -> None:
        """The rows of `other` come behind these."""
        self.arrays = _stacked(
            [
                (self.arrays, len(self.lengths.values), self.lengths.longest),
                (other.arrays, len(other.lengths.values), other.lengths.longest),
            ]
        )
        self.lengths = Lengths(self.lengths.values + other.lengths.values)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def _stack(self, singles: Sequence[Sequence[mx.array]]) -> None:
        """Take over what single sequences hold."""
        filled = zip(singles, self.lengths.values, strict=True)
        self.arrays = _stacked([(arrays, 1, length) for arrays, length in filled])

    def _row(self, row: int) -> list[mx.array]:
        return [array[row : row + 1, :, : self.lengths.values[row]] for array in self.arrays]

    def _filled(self) -> list[mx.array]:
        """All arrays up to the end of the longest row."""
        longest = self.lengths.longest
        return [array[..., :longest, :] for array in self.arrays]

    def _newest(self, count: int) -> list[mx.array]:
        if self.lengths.equal:
            end = self.lengths.longest
            return [array[..., end - count : end, :] for array in self.arrays]
        places = self.lengths.places(count) - count
        return [mx.take_along_axis(array, places, axis=2) for array in self.arrays]

    def _written(self, held: mx.array, new: mx.array, count: int) -> mx.array:
        # The arrays of a ghost have no bytes, and a scatter divides by their width.
        if new.size == 0:
            return held
        if self.lengths.equal:
            start = self.lengths.longest
            held[..., start : start + count, :] = new
            return held
        return mx.put_along_axis(held, self.lengths.places_of(new), new, axis=2)


class KeyValueRows(Rows):
    """Stands where upstream has its BatchKVCache: models write to it, read its offset and ask it for a mask."""

    @classmethod
    def merge(cls, singles: Sequence[Any]) -> KeyValueRows:
        """Single-sequence caches, which stay as they are, as the rows of one batch."""
        rows = cls([single.offset for single in singles])
        rows._stack([() if single.empty() else (single.keys, single.values) for single in singles])
        return rows

    def extract(self, row: int) -> Any:
        """A row as a single-sequence cache, whose arrays are slices of these."""
        single = decoders.KVCache()
        if self.arrays:
            single.keys, single.values = self._row(row)
            single.offset = self.lengths.values[row]
        return single

    # Some models put arrays of their own here.
    @property
    def keys(self) -> mx.array | None:
        return self.arrays[0] if self.arrays else None

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        self.arrays[0] = keys

    @property
    def values(self) -> mx.array | None:
        return self.arrays[1] if self.arrays else None

    @values.setter
    def values(self, values: mx.array) -> None:
        self.arrays[1] = values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the next tokens of every row; all keys and values up to the end of the longest one."""
        self.append((keys, values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = self._filled()
        return keys, values

    def newest(self, count: int) -> tuple[mx.array, mx.array]:
        """The keys and values of each row's last `count` tokens."""
        keys, values = self._newest(count)
        return keys, values


def widened(array: mx.array, room: int) -> mx.array:
    """The array with room for so many tokens at least."""
    rows, heads, places, width = array.shape
    if places >= room:
        return array
    return mx.concatenate([array, mx.zeros((rows, heads, room - places, width), array.dtype)], axis=2)


def _stacked(blocks: Sequence[Block]) -> list[mx.array]:
    """The arrays of all blocks one below the other, with room for the next token."""
    written = next((arrays for arrays, _, _ in blocks if arrays), ())
    room = room_for(max(longest for _, _, longest in blocks) + 1)
    return [
        mx.concatenate([_block(block, place, like, room) for block in blocks]) for place, like in enumerate(written)
    ]


def _block(block: Block, place: int, like: mx.array, room: int) -> mx.array:
    """One of a block's arrays as wide as asked: as it is where it has that width, so that a batch which others join is
    copied once, from one end to the other. Nothing comes from a block that was never written.
    """
    arrays, rows, longest = block
    if not arrays:
        return mx.zeros((rows, like.shape[1], room, like.shape[3]), like.dtype)
    array = arrays[place]
    return array if array.shape[2] == room else widened(array[:, :, :longest], room)


def room_for(tokens: int) -> int:
    """So many places an array has that holds these tokens."""
    return -(-tokens // STEP) * STEP
