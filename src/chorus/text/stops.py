"""Stop strings, found in text that arrives in pieces.

Tokens are the wrong place to look: the same text has many tokenizations, and a stop string may begin or end in the
middle of a token. So the search runs over characters, and its outcome never depends on where the pieces were cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Match:
    start: int
    stop: str

    def comes_before(self, other: _Match | None) -> bool:
        return other is None or (self.start, -len(self.stop)) < (other.start, -len(other.stop))


class Stops:
    """Stop strings made ready for the search: one serves any number of texts, such as the choices of a request."""

    def __init__(self, strings: Sequence[str]) -> None:
        if any(not stop for stop in strings):
            raise ValueError("a stop string is empty: leave it out, or give at least one character")
        self.borders = {stop: _borders(stop) for stop in dict.fromkeys(strings)}
        self.first_characters = frozenset(stop[0] for stop in strings)

    def __bool__(self) -> bool:
        return bool(self.borders)

    def matcher(self) -> StopMatcher:
        return StopMatcher(self)


NO_STOPS = Stops(())


class _Cursor:
    """How many leading characters of one stop string the text so far ends with (Knuth, Morris, Pratt)."""

    def __init__(self, stop: str, borders: Sequence[int]) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = borders

    def advance(self, character: str) -> bool:
        """True when the whole stop string has just been read; overlapping finds are reported too."""
        if self.matched == len(self.stop):
            self.matched = self._fallback[-1]
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)

    def open_length(self) -> int:
        """The length of the longest ending of the text that more text could turn into this stop string."""
        return self._fallback[-1] if self.matched == len(self.stop) else self.matched


class StopMatcher:
    """Passes text through up to the first stop string and holds back what may still become one.

    The earliest match wins, and of those that start together the longest. A complete match therefore waits while a
    longer or earlier one is still open: with the stops "ab" and "abc", the text "ab" is decided by what follows it.
    """

    def __init__(self, stops: Stops) -> None:
        self._cursors = [_Cursor(stop, borders) for stop, borders in stops.borders.items()]
        self._first_characters = stops.first_characters
        self._held = ""
        self._best: _Match | None = None
        self._decided = False

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, known also when only the end of the text settled it."""
        return self._best.stop if self._decided and self._best else None

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that is safe to emit and the stop string that was found, if one was."""
        if self._decided:
            return "", None
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None
        scanned = len(self._held)
        self._held += text
        for end in range(scanned + 1, len(self._held) + 1):
            self._advance(end)
            if self._best is not None and self._earliest_open(end) > self._best.start:
                return self._finish(), self.matched
        return self._release(), None

    def flush(self) -> str:
        """The text has ended: what was held back can no longer grow into a stop string. See `matched`."""
        if self._decided:
            return ""
        return self._finish()

    def _advance(self, end: int) -> None:
        character = self._held[end - 1]
        for cursor in self._cursors:
            if cursor.advance(character):
                found = _Match(end - len(cursor.stop), cursor.stop)
                if found.comes_before(self._best):
                    self._best = found

    def _earliest_open(self, end: int) -> int:
        """Where the earliest stop string that is still incomplete began; `end + 1` when none is under way."""
        longest = max(cursor.open_length() for cursor in self._cursors)
        return end - longest if longest else end + 1

    def _release(self) -> str:
        keep_from = min(self._earliest_open(len(self._held)), len(self._held))
        safe, self._held = self._held[:keep_from], self._held[keep_from:]
        if self._best is not None:
            self._best = _Match(self._best.start - keep_from, self._best.stop)
        return safe

    def _finish(self) -> str:
        safe = self._held if self._best is None else self._held[: self._best.start]
        self._held = ""
        self._decided = True
        return safe


def _borders(pattern: str) -> list[int]:
    """For each prefix of the pattern, the length of its longest proper prefix that is also its ending."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return borders
