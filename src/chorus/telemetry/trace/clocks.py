"""How far the clock of another process is ahead of ours, and how wrong that may be.

Monotonic clocks begin anywhere, and differ between machines. Whoever is asked for its time looks at its clock somewhere
between our question and its answer: the faster the answer, the less there is to guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ping:
    """One question for the time."""

    asked: float
    there: float
    """What the other clock showed."""
    answered: float

    @property
    def round_trip(self) -> float:
        return self.answered - self.asked


@dataclass(frozen=True, slots=True)
class Offset:
    """The other clock shows `seconds` more than ours, within `error` either way."""

    seconds: float = 0.0
    error: float = 0.0

    def here(self, there: float) -> float:
        """A moment of the other clock by ours."""
        return there - self.seconds


def offset(pings: Sequence[Ping]) -> Offset:
    """By the least round trip."""
    best = min(pings, key=lambda ping: ping.round_trip)
    return Offset(best.there - (best.asked + best.answered) / 2, best.round_trip / 2)


def over(before: Offset, after: Offset) -> Offset:
    """One offset for all that happened between two: clocks drift apart by a few milliseconds a minute, and that counts
    as error.
    """
    low = min(before.seconds - before.error, after.seconds - after.error)
    high = max(before.seconds + before.error, after.seconds + after.error)
    return Offset((low + high) / 2, (high - low) / 2)
