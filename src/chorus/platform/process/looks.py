"""Looks at others, at even times, by somebody who may be held up like them."""

from __future__ import annotations

LATE_SECONDS = 1.0
"""Whoever looks so much later than they meant to were held up themselves, and so perhaps was everybody."""


class Looks:
    """The looks of one who watches. One that was held up judges nobody for what went before.

    Knows no clock: whoever looks tells the time.
    """

    def __init__(self, now: float, pause: float = 0.0) -> None:
        """`pause`: how long it is until the first look."""
        self._due = now + pause
        self._since = now

    def look(self, now: float, pause: float) -> bool:
        """One look, the next of which is to come after `pause`; answers whether this one came too late."""
        late = now - self._due > LATE_SECONDS
        if late:
            self._since = now
        self._due = now + pause
        return late

    def quiet(self, since: float, now: float) -> float:
        """How much of the time since then counts."""
        return now - max(since, self._since)
