"""Why a rank waits: the one that it waits for may itself wait for another, and so on to one that does something.

In a pipeline the first stage waits for the leader's next step, the leader for activations of a stage between, and that
one computes: it is whom all of them wait for. Where the chain comes back to where it began, nobody does anything but
the network and the threads that serve it: what was sent is under way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from chorus.telemetry.phases import IDLE, NOBODY, WAIT, Span


class Reason(NamedTuple):
    """What a part of a wait was for."""

    begin: float
    end: float
    rank: int
    """Who did something meanwhile; NOBODY: something was under way, or nothing is known."""
    phase: int = WAIT
    """What that rank did."""


class Timelines:
    """The spans of every rank, by one clock, in order."""

    def __init__(self, spans: Mapping[int, Sequence[Span]]) -> None:
        self._spans = spans
        self._begins = {rank: [span.begin for span in of] for rank, of in spans.items()}

    def reasons(self, rank: int, wait: Span) -> list[Reason]:
        """Of the whole of a wait, in order; neighbours that are alike are one."""
        joined: list[Reason] = []
        for reason in self._chase(wait.rank, wait.begin, wait.end, (rank,)):
            last = joined[-1] if joined else None
            if last and last.end == reason.begin and (last.rank, last.phase) == (reason.rank, reason.phase):
                joined[-1] = last._replace(end=reason.end)
            else:
                joined.append(reason)
        return joined

    def _chase(self, rank: int, begin: float, end: float, seen: tuple[int, ...]) -> Iterator[Reason]:
        at = begin
        for span in self._during(rank, begin, end) if rank not in seen else ():
            start, stop = max(begin, span.begin), min(end, span.end)
            if at < start:
                yield Reason(at, start, NOBODY)
            if span.phase == WAIT:
                yield from self._chase(span.rank, start, stop, (*seen, rank))
            elif span.phase == IDLE:
                yield Reason(start, stop, NOBODY)
            else:
                yield Reason(start, stop, rank, span.phase)
            at = stop
        if at < end:
            yield Reason(at, end, NOBODY)

    def _during(self, rank: int, begin: float, end: float) -> Iterator[Span]:
        spans = self._spans.get(rank, ())
        at = max(0, bisect_right(self._begins.get(rank, []), begin) - 1)
        while at < len(spans) and spans[at].begin < end:
            if spans[at].end > begin:
                yield spans[at]
            at += 1
