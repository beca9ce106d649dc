"""How far something is that takes long: how much is done, how fast it goes, how long it still takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chorus.platform.sizes import size

LINE_SECONDS = 5.0
"""In words, what is known already is told anew so often at most."""
PACE_SECONDS = 10.0
"""A rate is that of the last so many seconds."""
LEAST_SECONDS = 0.5
"""From less than that no rate is told: it would jump."""
_MOST_LOOKS = 256


WHOLE = 1000
"""Of what is told as a share."""


@dataclass(frozen=True)
class Progress:
    """How far a wait has come."""

    label: str
    done: int
    total: int | None
    """None where nobody knows."""
    in_bytes: bool = True
    """Otherwise only the share means something."""

    @classmethod
    def of_share(cls, label: str, share: float) -> Progress:
        """Of something that is not counted in bytes; one that has not begun may take any time."""
        return cls(label, round(share * WHOLE), WHOLE if share else None, in_bytes=False)


class Pace:
    """How fast something goes, from how far it was when somebody looked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._label = ""
        self._looks: deque[tuple[float, float]] = deque(maxlen=_MOST_LOOKS)

    def figures(self, seen: Progress) -> str:
        """How much is done, how fast, how long it still takes: as far as all that is known."""
        self._look(seen)
        if not seen.total:
            return size(seen.done) if seen.done and seen.in_bytes else ""
        parts = [f"{min(1.0, seen.done / seen.total):.0%}"]
        if seen.in_bytes:
            parts.append(f"{size(seen.done)} of {size(seen.total)}")
        rate = self._rate()
        if rate and seen.done < seen.total:
            if seen.in_bytes:
                parts.append(f"{rate / 1e6:.1f} MB/s")
            parts.append(f"{duration((seen.total - seen.done) / rate)} left")
        return ", ".join(parts)

    def _look(self, seen: Progress) -> None:
        now = self._clock()
        if seen.label != self._label or (self._looks and seen.done < self._looks[-1][1]):
            self._label = seen.label
            self._looks.clear()
        # A look ten times a second says as much as a thousand.
        if not self._looks or now - self._looks[-1][0] >= PACE_SECONDS / 100:
            self._looks.append((now, seen.done))
        while len(self._looks) > 2 and now - self._looks[0][0] > PACE_SECONDS:
            self._looks.popleft()

    def _rate(self) -> float | None:
        """In a second; None where that cannot be said yet, or nothing moves."""
        if not self._looks:
            return None
        (first, began), (last, came) = self._looks[0], self._looks[-1]
        return (came - began) / (last - first) if last - first >= LEAST_SECONDS and came > began else None


class Steady:
    """How far something is in words, the same for a while, so that whoever shows what is new shows little."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace(clock)
        self._told, self._until = "", 0.0

    def text(self, seen: Progress) -> str:
        figures = self._pace.figures(seen)
        if self._clock() >= self._until or not self._told.startswith(seen.label):
            self._told = f"{seen.label} {figures}".strip()
            self._until = self._clock() + LINE_SECONDS
        return self._told


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
