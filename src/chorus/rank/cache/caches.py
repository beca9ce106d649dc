"""Operations on the cache of a sequence or of a batch, one list entry per cache of the model: upstream's objects, but
for the keys and values of a batch.

One object may stand at several places of the list (a stage keeps one ghost for all far layers of a kind), so every
operation here runs once per object and keeps the sharing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.errors import ChorusError
from chorus.rank.cache.packed import PackedCache, PackedRows, Packing, packed
from chorus.rank.cache.rows import KeyValueRows, Rows, share_lengths
from chorus.rank.upstream import decoders

Cache = list[Any]

PLAIN = (decoders.KVCache, PackedCache)
"""The keys and values of a sequence, with a place for every token."""

_BATCHED = (KeyValueRows, PackedRows, decoders.BatchRotatingKVCache)


class CacheError(ChorusError, ValueError):
    """This cache cannot do what was asked of it."""


def fresh(model: nn.Module, packing: Packing | None = None) -> Cache:
    cache = list(decoders.make_prompt_cache(model))
    return packed(cache, packing) if packing else cache


def merge(caches: Sequence[Cache]) -> Cache:
    """Single-sequence caches become the rows of one batch."""
    if not caches:
        raise CacheError("there is nothing to merge: give at least one cache")
    _require_batchable(caches[0])
    places = {id(entry): place for place, entry in enumerate(caches[0])}
    return _shared(_per_object(caches[0], lambda entry: _merge([cache[places[id(entry)]] for cache in caches])))


def extend(batch: Cache, other: Cache) -> Cache:
    """The rows of `other` join `batch`, which is changed in place; `other` must not be used afterwards."""
    for entry, joining in _distinct(batch, other):
        entry.extend(joining)
    return _shared(batch)


def keep(batch: Cache, rows: Sequence[int]) -> Cache:
    """Only these rows stay, in this order; `batch` is changed in place."""
    if not rows:
        raise CacheError("a batch cannot be empty: drop the whole cache instead")
    indices = mx.array(list(rows), dtype=mx.int32)
    for (entry,) in _distinct(batch):
        entry.filter(indices)
    return _shared(batch)


def row(cache: Cache, number: int) -> Cache:
    """One of the sequences that filled a single-sequence cache side by side, equally long and without padding."""
    return _per_object(cache, lambda entry: _copy(entry, slice(number, number + 1)))


def extract(batch: Cache, row: int) -> Cache:
    """A row of a batch as a single-sequence cache of its own."""
    return _per_object(batch, lambda entry: _extract(entry, row))


def batchable(cache: Cache) -> bool:
    """Whether every entry of this single-sequence cache can become a row of a batch."""
    return all(_can_merge(entry) for entry in cache)


def arrays(cache: Cache) -> list[mx.array]:
    """All arrays in the cache, for mx.eval."""
    return [array for (entry,) in _distinct(cache) for array in _arrays_in(entry)]


def size_bytes(cache: Cache) -> int:
    return sum(entry.nbytes for (entry,) in _distinct(cache))


def bytes_per_token(cache: Cache) -> int:
    """What one more token costs; windows and states that have their full size cost nothing more."""
    return sum(_growth(entry) for (entry,) in _distinct(cache))


def growing_layers(cache: Cache) -> int:
    """How many entries keep something of every token."""
    return sum(bool(_growth(entry)) for (entry,) in _distinct(cache))


def _growth(entry: Any) -> int:
    if isinstance(entry, decoders.CacheList):
        return sum(map(_growth, entry.caches))
    held = plain_arrays(entry) if isinstance(entry, PLAIN) else []
    return int(entry.nbytes) // int(held[0].shape[2]) if held else 0


def plain_arrays(entry: Any) -> list[mx.array]:
    """What an entry with a place for every token holds, each of the shape (rows, heads, places, width); nothing of one
    that no layer ever wrote.
    """
    if isinstance(entry, PackedCache):
        return entry.arrays
    return [] if entry.keys is None else [entry.keys, entry.values]


def fill_plain(entry: Any, arrays: Sequence[mx.array], length: int) -> None:
    """Let a fresh entry hold such arrays, of which so many places are filled."""
    if isinstance(entry, PackedCache):
        entry.fill(arrays, length)
    else:
        entry.keys, entry.values = arrays
        entry.offset = length


def newest(entry: Any, count: int) -> tuple[mx.array, mx.array]:
    """The keys and values of the last `count` tokens, as they were written by the last update."""
    if isinstance(entry, KeyValueRows | PackedCache | PackedRows):
        return entry.newest(count)
    end = entry._idx if hasattr(entry, "_idx") else entry.offset
    return entry.keys[..., end - count : end, :], entry.values[..., end - count : end, :]


def kind(entry: Any) -> tuple[Any, ...]:
    """Fresh caches of one kind stay alike for ever, whatever happens to their sequence."""
    return (type(entry), *((name, _plain(value)) for name, value in sorted(vars(entry).items())))


def advance_ghost(entry: Any, batch: int, count: int) -> None:
    """Tell a far layer's cache that `count` tokens have passed, with arrays that hold no bytes.

    The cache runs upstream's own code on them, so its offsets, its rotation and the masks made from it stay right.
    """
    if isinstance(entry, decoders.CacheList):
        for part in entry.caches:
            advance_ghost(part, batch, count)
    elif isinstance(entry, decoders.ArraysCache):
        # Without an array in its slots a state cache forgets how many rows the batch has.
        entry.cache = [mx.zeros((batch, 0)) for _ in entry.cache]
        entry.advance(count)
    elif hasattr(entry, "update_window"):
        entry.update_window(mx.zeros((batch, count, 0)))
    else:
        nothing = mx.zeros((batch, 1, count, 0))
        entry.update_and_fetch(nothing, nothing)


def _shared(batch: Cache) -> Cache:
    """The batch, with one object for the lengths of all layers that have the same."""
    share_lengths(entry for entry in decoders.leaves(batch) if isinstance(entry, Rows))
    return batch


def _require_batchable(cache: Cache) -> None:
    for entry in cache:
        if not _can_merge(entry):
            raise CacheError(f"{type(entry).__name__} cannot be batched: run its sequences one at a time")


def _can_merge(entry: Any) -> bool:
    if isinstance(entry, decoders.CacheList):
        return all(map(_can_merge, entry.caches))
    return hasattr(entry, "merge") and not isinstance(entry, _BATCHED)


def _merge(entries: Sequence[Any]) -> Any:
    first = entries[0]
    if isinstance(first, decoders.CacheList):
        return decoders.CacheList(*map(_merge, zip(*(entry.caches for entry in entries), strict=True)))
    return KeyValueRows.merge(entries) if isinstance(first, decoders.KVCache) else first.merge(list(entries))


def _extract(entry: Any, row: int) -> Any:
    # Upstream cannot take a row from a cache that was never written, and some models have one for a layer without use.
    if isinstance(entry, decoders.BatchRotatingKVCache) and entry.empty():
        return decoders.RotatingKVCache(entry.max_size)
    return entry.extract(row)


def _copy(entry: Any, rows: slice) -> Any:
    copy = object.__new__(type(entry))
    for name, value in vars(entry).items():
        copy.__dict__[name] = _copy_value(value, rows)
    return copy


def _copy_value(value: Any, rows: slice) -> Any:
    if isinstance(value, mx.array):
        return value[rows]
    if isinstance(value, list | tuple):
        return type(value)(_copy_value(item, rows) for item in value)
    return _copy(value, rows) if hasattr(value, "is_trimmable") else value


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return kind(value) if hasattr(value, "is_trimmable") else value


def _arrays_in(value: Any) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays_in(item)
    elif isinstance(value, Rows):
        yield from value.arrays
    elif hasattr(value, "is_trimmable"):
        for item in vars(value).values():
            yield from _arrays_in(item)


def _per_object(cache: Cache, make: Callable[[Any], Any]) -> Cache:
    made: dict[int, Any] = {}
    for entry in cache:
        if id(entry) not in made:
            made[id(entry)] = make(entry)
    return [made[id(entry)] for entry in cache]


def _distinct(*caches: Cache) -> Iterator[tuple[Any, ...]]:
    seen: set[int] = set()
    for entries in zip(*caches, strict=True):
        if id(entries[0]) not in seen:
            seen.add(id(entries[0]))
            yield entries
