"""Text that arrives in pieces, read as if it were all there.

Parsers are written as generators: straight code that yields where it must wait for more text. Every decision waits
until the characters it depends on have arrived, so where the text was cut can never change an outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from chorus.errors import InternalSignal

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]


class Malformed(InternalSignal):
    """What looked like a call is none; what was read of it and not yet used is ordinary text."""


class CutOff(InternalSignal):
    """The text ended in the middle of a call."""


class Markers:
    """A set of fixed strings to look for. None may begin another one: then the first match is the only one."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(dict.fromkeys(strings))
        for one in self.strings:
            if not one or any(other != one and other.startswith(one) for other in self.strings):
                raise ValueError(f"marker {one!r} is empty or begins another one")
        self._pattern = re.compile("|".join(map(re.escape, self.strings)) or r"(?!)")
        self._first = frozenset(string[0] for string in self.strings)
        self.longest = max(map(len, self.strings), default=1)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def at(self, text: str, start: int) -> str | None:
        found = self._pattern.match(text, start)
        return found.group() if found else None

    def may_become(self, text: str) -> bool:
        """True if more text could turn this into a marker."""
        return any(len(text) < len(string) and string.startswith(text) for string in self.strings)

    def open_length(self, text: str) -> int:
        """The length of the longest ending of the text that more text could turn into a marker."""
        begin = max(0, len(text) - self.longest + 1)
        for at in range(begin, len(text)):
            if text[at] in self._first and self.may_become(text[at:]):
                return len(text) - at
        return 0

    def without(self, text: str) -> str:
        """The text with its markers taken out, a half one at its end included."""
        text = self._pattern.sub("", text)
        return text[: len(text) - self.open_length(text)]


def one(marker: str) -> Markers:
    return Markers((marker,))


class Source:
    """The text read so far and not yet used, with a record of what was used but not yet accounted for."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] = []
        self.ended = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def commit(self) -> None:
        """What was read so far has come out in some form, or was markup that has been understood."""
        self._record.clear()

    def unaccounted(self) -> str:
        text = "".join(self._record)
        self._record.clear()
        return text

    def take(self, count: int) -> str:
        text = self._text[self._at : self._at + count]
        self._at += count
        self._record.append(text)
        return text

    def put_back(self, text: str) -> None:
        """Undo the reading of what was just used up."""
        self._text = text + self._text[self._at :]
        self._at = 0
        if self._record and self._record[-1] == text:
            self._record.pop()

    def rest(self) -> str:
        return self._text[self._at :]

    def peek(self) -> Steps[str]:
        """The next character, not used up; empty at the end of the text."""
        while self._at >= len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def skip_space(self) -> Steps[str]:
        return (yield from self.take_while(str.isspace))

    def take_while(self, wanted: Callable[[str], bool]) -> Steps[str]:
        taken = ""
        while (character := (yield from self.peek())) and wanted(character):
            taken += self.take(1)
        return taken

    def take_marker(self, markers: Markers) -> Steps[str | None]:
        """Use up the marker that the text goes on with, if it does."""
        while not self.ended and markers.may_become(self._head(markers)):
            yield
        if marker := markers.at(self._text, self._at):
            self.take(len(marker))
        return marker

    def expect(self, markers: Markers) -> Steps[str]:
        """Skip space, then use up one of the markers; inside a call, where nothing else may stand."""
        yield from self.skip_space()
        if marker := (yield from self.take_marker(markers)):
            return marker
        if self.ended and markers.may_become(self._head(markers)):
            raise CutOff
        raise Malformed

    def _head(self, markers: Markers) -> str:
        return self._text[self._at : self._at + markers.longest]

    def until(self, markers: Markers, sink: Sink) -> Steps[str | None]:
        """Pass text on to the first marker and use that up; None if the text ended before."""
        while True:
            if found := markers.search(self._text, self._at):
                if found.start() > self._at:
                    sink(self.take(found.start() - self._at))
                return self.take(len(found.group()))
            text = self.rest()
            safe = len(text) if self.ended else len(text) - markers.open_length(text)
            if safe:
                sink(self.take(safe))
            if self.ended:
                return None
            yield

    def inside(self, markers: Markers, sink: Sink) -> Steps[str]:
        """As `until`, inside a call: its end must come."""
        marker = yield from self.until(markers, sink)
        if marker is None:
            raise CutOff
        return marker

    def header(self, end: str) -> Steps[str]:
        """The text up to the end of an opening tag. One that runs on into a new line or another tag is none."""
        stops = ("\n",) if end.startswith("<") else ("\n", "<")
        text, marker = yield from self.collect(Markers((end, *stops)))
        if marker != end:
            self.put_back(marker)
            raise Malformed
        return text

    def collect(self, markers: Markers) -> Steps[tuple[str, str]]:
        """The text up to a marker, whole, and the marker."""
        parts: list[str] = []
        marker = yield from self.inside(markers, parts.append)
        return "".join(parts), marker
