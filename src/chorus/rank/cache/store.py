"""What a rank keeps of the sequences it has computed, for others that begin alike.

A segment is a run of tokens under a number that the leader gave it. Of keys and values, which have a place for every
token, it holds exactly these tokens. Where it has a state it also holds what has no such places, as it was behind its
last token: windows, cut to their size, and recurrent states.

A cache is read here as its leaves, the objects that hold arrays themselves, each once: all caches of a stage have the
same leaves in the same order, whatever stands at several places of the list or inside another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mlx.core as mx

from chorus.errors import ChorusError
from chorus.messages.rank import Keeping, Part
from chorus.models.architectures import architecture
from chorus.rank.cache.caches import PLAIN, CacheError, fill_plain, plain_arrays
from chorus.rank.cache.rows import room_for
from chorus.rank.upstream import decoders
from chorus.rank.upstream.decoders import ArraysCache, ChunkedKVCache, RotatingKVCache

Cache = list[Any]
Arrays = list[mx.array | None]
"""The arrays of a leaf; None in a slot that nobody has written yet."""

_WINDOWS = (RotatingKVCache, ChunkedKVCache)


class UnknownSegment(ChorusError, ValueError):
    """A step names a segment that is not stored here."""


def keeping(fresh: Cache, names: Sequence[str]) -> Keeping:
    """What a stage's caches allow, for an architecture of these names."""
    for name in names:
        if reason := architecture(name).not_kept:
            return Keeping(refusal=f"nothing that was computed is kept for {name}: {reason}")
    leaves = _leaves(fresh)
    for leaf in leaves:
        if not _is_known(leaf):
            unknown = type(leaf).__name__
            return Keeping(refusal=f"nothing that was computed is kept: Chorus does not know how to cut a {unknown}")
    others = [leaf for leaf in leaves if not isinstance(leaf, PLAIN)]
    if all(isinstance(leaf, _WINDOWS) for leaf in others):
        return Keeping(anywhere=not others, reach=min(map(_size, others), default=0))
    return Keeping()


def state_bytes(cache: Cache) -> int:
    """What the windows, when they are full, and the recurrent states of this cache's sequences take."""
    return sum(map(_full_bytes, _leaves(cache)))


def stack(caches: Sequence[Cache], fresh: Cache, room: int = 1) -> Cache:
    """Fill a fresh cache with equally long sequences, a row each, and with room for so many tokens more."""
    positions = {_position(_leaves(cache)) for cache in caches}
    if len(positions) != 1:
        raise CacheError(
            f"sequences of {sorted(positions)} tokens cannot go on side by side: they must be equally long"
        )
    (position,) = positions
    for leaf, *rows in zip(_leaves(fresh), *map(_leaves, caches), strict=True):
        columns = zip(*(_contents(row, position) for row in rows), strict=True)
        side_by_side = [None if column[0] is None else mx.concatenate(list(column)) for column in columns]
        if isinstance(leaf, PLAIN):
            _fill_plain(leaf, [side_by_side], position, room)
        else:
            _fill_other(leaf, side_by_side, position)
    return fresh


@dataclass(frozen=True)
class Segment:
    """The tokens from `start` to `stop` of some sequence, computed."""

    start: int
    stop: int
    slices: dict[int, Arrays]
    """Of the leaves that have a place for every token."""
    states: dict[int, Arrays] | None = None
    """Of the other leaves, as they were at `stop`; None where no state was stored."""

    @property
    def length(self) -> int:
        return self.stop - self.start

    @cached_property
    def nbytes(self) -> int:
        held = (*self.slices.values(), *(self.states or {}).values())
        return sum(array.nbytes for arrays in held for array in arrays if array is not None)


class SegmentStore:
    def __init__(self) -> None:
        self.nbytes = 0
        self._segments: dict[int, Segment] = {}

    def take(self, number: int, cache: Cache, start: int, stop: int, state: bool, wait: bool = True) -> None:
        """Keep the tokens from `start` to `stop` of a sequence, with `state` also what stands behind them; that alone
        where both are the same place.

        What is taken is copied and computed at once: whoever holds a slice of the source makes its next write copy it.
        Without `wait` it is only begun: then that write may copy the source.
        """
        leaves = _leaves(cache)
        if number in self._segments or not 0 <= start <= stop or (start == stop and not state):
            raise CacheError(f"segment {number} cannot hold the tokens from {start} to {stop}")
        slices = {place: _copied(_slice(leaf, start, stop)) for place, leaf in _plain(leaves)} if start < stop else {}
        segment = Segment(start, stop, slices)
        if state:
            _check_states(leaves, stop)
            states = {place: _copied(_contents(leaf, stop)) for place, leaf in _others(leaves)}
            segment = replace(segment, states=states)
        (mx.eval if wait else mx.async_eval)(segment.slices, segment.states)
        self._keep(number, segment)

    def join(self, parts: Sequence[Part], fresh: Cache, room: int = 1) -> Cache:
        """Fill a fresh cache with the first tokens of segments that follow each other, and with the last one's state,
        with room for so many tokens more. A last part without tokens brings its state alone, cut to what is joined.
        """
        if not parts:
            raise CacheError("there is nothing to join: name at least one segment")
        chosen = [(self.segment(part.segment), part) for part in parts]
        total = 0
        for segment, part in chosen:
            if part.length and (part.length > segment.length or segment.start != total):
                raise CacheError(
                    f"segment {part.segment} holds the tokens from {segment.start} to {segment.stop}: "
                    f"it has no {part.length} to put behind {total}"
                )
            total += part.length
        leaves = _leaves(fresh)
        for place, leaf in _plain(leaves):
            pieces = [_cut(segment.slices[place], 0, part.length) for segment, part in chosen if part.length]
            _fill_plain(leaf, pieces, total, room)
        if others := dict(_others(leaves)):
            last = chosen[-1][0]
            if last.states is None:
                raise CacheError(f"segment {parts[-1].segment} has no state, without which this model cannot go on")
            for place, leaf in others.items():
                _fill_other(leaf, _state_at(leaf, last.states[place], last.stop, total), total)
        return fresh

    def split(self, number: int, at: int, rest: int) -> None:
        """The first `at` tokens stay; what comes behind them, and the state, becomes the segment `rest`."""
        segment = self.segment(number)
        if not 0 < at < segment.length or rest in self._segments:
            raise CacheError(f"segment {number} of {segment.length} tokens cannot be split at {at} into {rest}")
        middle = segment.start + at
        head, tail = Segment(segment.start, middle, {}), Segment(middle, segment.stop, {}, segment.states)
        self._let_go(number)
        # Leaf by leaf, so that never more than one of them is there twice.
        for place in list(segment.slices):
            arrays = segment.slices.pop(place)
            head.slices[place] = _copied(_cut(arrays, 0, at))
            tail.slices[place] = _copied(_cut(arrays, at, segment.length))
            mx.eval(head.slices[place], tail.slices[place])
        self._keep(number, head)
        self._keep(rest, tail)

    def segment(self, number: int) -> Segment:
        try:
            return self._segments[number]
        except KeyError:
            raise UnknownSegment(f"segment {number} is not stored here") from None

    def put(self, number: int, segment: Segment) -> None:
        """Keep a segment that was taken before, under a number of now."""
        if number in self._segments:
            raise CacheError(f"segment {number} is stored already")
        self._keep(number, segment)

    def evict(self, number: int) -> None:
        """What is not there, since the step that was to store it has failed, need not go."""
        self._let_go(number)

    def clear(self) -> None:
        self._segments.clear()
        self.nbytes = 0

    def _keep(self, number: int, segment: Segment) -> None:
        self._let_go(number)
        self._segments[number] = segment
        self.nbytes += segment.nbytes

    def _let_go(self, number: int) -> None:
        if segment := self._segments.pop(number, None):
            self.nbytes -= segment.nbytes


def _leaves(cache: Cache) -> list[Any]:
    found = {id(leaf): leaf for leaf in decoders.leaves(cache)}
    return list(found.values())


def _is_known(leaf: Any) -> bool:
    # A window that always keeps its first tokens would have to be cut in two pieces; no architecture makes one.
    return isinstance(leaf, (*PLAIN, ChunkedKVCache, ArraysCache)) or (
        isinstance(leaf, RotatingKVCache) and not leaf.keep
    )


def _plain(leaves: list[Any]) -> Iterator[tuple[int, Any]]:
    return ((place, leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, PLAIN))


def _others(leaves: list[Any]) -> Iterator[tuple[int, Any]]:
    return ((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, PLAIN))


def _size(window: Any) -> int:
    return int(window.max_size if isinstance(window, RotatingKVCache) else window.chunk_size)


def _full_bytes(leaf: Any) -> int:
    if isinstance(leaf, ArraysCache):
        return int(leaf.nbytes)
    if isinstance(leaf, _WINDOWS) and leaf.keys is not None:
        return int(leaf.nbytes) // int(leaf.keys.shape[2]) * _size(leaf)
    return 0


def _position(leaves: list[Any]) -> int:
    """How many tokens a cache has seen; 0 where it is made of recurrent states alone, which do not know."""
    return max((leaf.offset for leaf in leaves if not isinstance(leaf, ArraysCache)), default=0)


def _check_states(leaves: list[Any], stop: int) -> None:
    if any(isinstance(leaf, ArraysCache) for leaf in leaves) and _position(leaves) not in (0, stop):
        raise CacheError(f"the states of this sequence stand at token {_position(leaves)}, not at {stop}")


def _slice(leaf: Any, start: int, stop: int) -> Arrays:
    """The keys and values of these tokens; nothing of a cache that no layer ever wrote."""
    arrays: Arrays = [*plain_arrays(leaf)]
    if arrays and stop > leaf.offset:
        raise CacheError(f"the sequence has {leaf.offset} tokens: none from {start} to {stop} can be stored")
    return _cut(arrays, start, stop)


def _contents(leaf: Any, position: int) -> Arrays:
    """What a leaf holds of a sequence's first `position` tokens."""
    if isinstance(leaf, ArraysCache):
        return list(leaf.cache)
    if isinstance(leaf, PLAIN):
        return _slice(leaf, 0, position)
    return _window(leaf, _in_order(leaf), leaf.offset, position)


def _in_order(window: Any) -> Arrays:
    if window.keys is None:
        return []
    if isinstance(window, RotatingKVCache):
        return [window._temporal_order(window.keys), window._temporal_order(window.values)]
    return _cut([window.keys, window.values], 0, window.offset - window.start_position)


def _state_at(leaf: Any, arrays: Arrays, stood: int, position: int) -> Arrays:
    if isinstance(leaf, ArraysCache) and stood != position:
        raise CacheError(f"a recurrent state of {stood} tokens cannot go back to {position}")
    return arrays if stood == position else _window(leaf, arrays, stood, position)


def _window(window: Any, arrays: Arrays, stood: int, position: int) -> Arrays:
    """What a window has to hold at `position`, out of what it held behind `stood` tokens."""
    if not arrays:
        return []
    first = stood - _tokens(arrays)
    start = max(0, position - _size(window))
    if not first <= start <= position <= stood:
        raise CacheError(f"a window that has the tokens from {first} to {stood} cannot be cut to end at {position}")
    return _cut(arrays, start - first, position - first)


def _tokens(arrays: Arrays) -> int:
    return next(int(array.shape[2]) for array in arrays if array is not None)


def _fill_plain(leaf: Any, pieces: list[Arrays], position: int, room: int) -> None:
    """Write pieces one behind the other, so that the next writes find their place without copying it all again."""
    if not pieces or not pieces[0]:
        return
    more = room_for(position + room) - position
    columns = zip(*pieces, strict=True)
    arrays = [mx.concatenate([*column, _empty(column[0], more)], axis=2) for column in columns]
    fill_plain(leaf, arrays, position)


def _empty(like: mx.array, tokens: int) -> mx.array:
    batch, heads, _, width = like.shape
    return mx.zeros((batch, heads, tokens, width), like.dtype)


def _fill_other(leaf: Any, arrays: Arrays, position: int) -> None:
    """The leaf gets array objects of its own: what it writes into them, nobody else sees."""
    own = [None if array is None else array[...] for array in arrays]
    if isinstance(leaf, ArraysCache):
        leaf.cache = own
    elif own:
        leaf.keys, leaf.values = own
        leaf.offset = position
        if isinstance(leaf, RotatingKVCache):
            leaf._idx = _tokens(own)
        else:
            leaf.start_position = position - _tokens(own)


def _cut(arrays: Arrays, start: int, stop: int) -> Arrays:
    return [None if array is None else array[..., start:stop, :] for array in arrays]


def _copied(arrays: Arrays) -> Arrays:
    return [None if array is None else mx.contiguous(array) for array in arrays]
