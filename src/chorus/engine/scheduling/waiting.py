"""The requests that wait, in the order in which they may begin. What is asked of it costs the same for ten of them as
for ten thousand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter

from chorus.engine.scheduling.sequences import Sequence

Line = list[Sequence]
"""Of one owner, oldest first."""

_number = attrgetter("number")


class Waiting:
    def __init__(self) -> None:
        self._resumed, self._others = _Lines(), _Lines()
        self._numbers: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.number in self._numbers

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._resumed, self._others)

    def add(self, sequence: Sequence) -> None:
        """Its place is that of its number, whenever it comes back."""
        self._numbers.add(sequence.number)
        self._lines_of(sequence).add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._numbers.remove(sequence.number)
        self._lines_of(sequence).remove(sequence)

    def in_turn(self, served: Mapping[str, int]) -> Iterator[Sequence]:
        """Of each owner the oldest first, and first whoever's owner has the fewest running, which `served` says. Before
        them all whoever had begun in an engine that is gone. Must not change while it is read.
        """
        return chain(self._resumed.in_turn(served), self._others.in_turn(served))

    def _lines_of(self, sequence: Sequence) -> _Lines:
        return self._resumed if sequence.request.resumed else self._others


class _Lines:
    """A line for each owner, and who stands first in each. Lists that stay sorted: to insert moves some pointers, which
    is nothing beside a look at every one.
    """

    def __init__(self) -> None:
        self._of: dict[str, Line] = {}
        self._first: Line = []

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._of.values())

    def add(self, sequence: Sequence) -> None:
        line = self._of.setdefault(sequence.request.owner, [])
        if line and line[0].number > sequence.number:
            _take(self._first, line[0])
        insort(line, sequence, key=_number)
        if line[0] is sequence:
            insort(self._first, sequence, key=_number)

    def remove(self, sequence: Sequence) -> None:
        line = self._of[sequence.request.owner]
        if line[0] is sequence:
            _take(self._first, sequence)
        _take(line, sequence)
        if not line:
            del self._of[sequence.request.owner]
        elif line[0].number > sequence.number:
            insort(self._first, line[0], key=_number)

    def in_turn(self, served: Mapping[str, int]) -> Iterator[Sequence]:
        yield from _by_age(
            self._of[first.request.owner] for first in self._first if not served.get(first.request.owner)
        )
        for count in sorted({count for count in served.values() if count}):
            lines = [line for owner, of in served.items() if of == count and (line := self._of.get(owner))]
            yield from _by_age(iter(sorted(lines, key=lambda line: line[0].number)))


def _take(line: Line, sequence: Sequence) -> None:
    del line[bisect_left(line, sequence.number, key=_number)]


def _by_age(lines: Iterator[Line]) -> Iterator[Sequence]:
    """All sequences of lines that are sorted by their first, oldest first; no line is looked at before its turn."""
    begun: list[tuple[int, int, Line]] = []
    upcoming = next(lines, None)
    while begun or upcoming:
        if upcoming and (not begun or upcoming[0].number < begun[0][0]):
            place, line = 0, upcoming
            upcoming = next(lines, None)
        else:
            _, place, line = heappop(begun)
        yield line[place]
        if place + 1 < len(line):
            heappush(begun, (line[place + 1].number, place + 1, line))
