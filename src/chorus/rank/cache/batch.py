"""The sequences that decode together on one rank, a row each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from chorus.errors import ChorusError
from chorus.rank.cache import caches

Cache = list[Any]
Held = TypeVar("Held")


class UnknownSequence(ChorusError, ValueError):
    """A step goes on with a sequence that is not here: its cache was lost, and an empty one would answer nonsense."""


def known(held: Mapping[int, Held], sequence: int) -> Held:
    try:
        return held[sequence]
    except KeyError:
        raise UnknownSequence(f"sequence {sequence} is not known here") from None


class Batch:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self._cache: Cache = []
        self._merged = False
        """A batch of one keeps its single-sequence cache: the same operations as alone."""

    @property
    def cache_bytes(self) -> int:
        return caches.size_bytes(self._cache)

    def hold(self, wanted: Sequence[int], alone: dict[int, Cache], dropped: Collection[int] = ()) -> Cache:
        """Hold exactly these sequences: rows that stay keep their order, new ones come last, out of `alone`."""
        if self.rows == list(wanted) and not dropped:
            return self._cache
        # All who leave do so at once: each time, the rows that stay are copied.
        self.keep([number for number in self.rows if number in wanted and number not in dropped])
        joining = list(wanted[len(self.rows) :])
        if self.rows + joining != list(wanted):
            raise ValueError(f"step changes the order of the batch from {self.rows} to {list(wanted)}")
        if joining:
            self._join(joining, [known(alone, number) for number in joining])
            for number in joining:
                del alone[number]
        return self._cache

    def drop(self, sequences: Collection[int]) -> None:
        self.keep([number for number in self.rows if number not in sequences])

    def part_with(self, sequence: int) -> Cache:
        """What a sequence has here, which it goes on with elsewhere."""
        cache = self.cache_of(sequence)
        self.drop((sequence,))
        return cache

    def keep(self, rows: list[int]) -> None:
        if rows == self.rows:
            return
        if not rows:
            self._cache, self._merged = [], False
        else:
            self._cache = caches.keep(self._cache, [self.rows.index(number) for number in rows])
        self.rows = rows

    def cache_of(self, sequence: int) -> Cache:
        return caches.extract(self._cache, self.rows.index(sequence)) if self._merged else self._cache

    def _join(self, joining: list[int], arriving: list[Cache]) -> None:
        if not self.rows and len(arriving) == 1:
            self._cache = arriving[0]
        elif self._merged:
            self._cache = caches.extend(self._cache, caches.merge(arriving))
        else:
            # With nobody there yet or one unmerged sequence, all become rows at once.
            self._cache = caches.merge(([self._cache] if self.rows else []) + arriving)
            self._merged = True
        self.rows += joining
