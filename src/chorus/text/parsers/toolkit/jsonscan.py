"""JSON read as it arrives: passed on piece by piece, with its end found by its own grammar."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Sink, Source, Steps

_SPACE = frozenset(" \t\r\n")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_SCALAR_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_HEX = frozenset("0123456789abcdefABCDEF")
_NEVER = Markers(())


class JsonScanner:
    """Follows one JSON object, array or string, character by character.

    One fault is mended, because many models have it: a line break or tab written as it is inside a string is
    escaped. Anything else that is not JSON stops the scan.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._stack: list[str] = []
        self._expect = "value"
        self._scalar: list[str] = []
        self._string_is_key = False
        self._hex_digits = 0

    def feed(self, text: str) -> tuple[int, str]:
        """How many characters belong to the value, and the JSON text they make."""
        out: list[str] = []
        for at, character in enumerate(text):
            mended = self._step(character)
            if mended is None:
                self.failed = True
                return at, "".join(out)
            out.append(mended)
            if self.done:
                return at + 1, "".join(out)
        return len(text), "".join(out)

    def _step(self, character: str) -> str | None:
        match self._expect:
            case "string":
                return self._in_string(character)
            case "escape":
                return self._after_backslash(character)
            case "hex":
                self._hex_digits -= 1
                if not self._hex_digits:
                    self._expect = "string"
                return character if character in _HEX else None
            case "scalar" if character in _SCALAR_CHARACTERS:
                self._scalar.append(character)
                return character
            case "scalar":
                if not _SCALAR.fullmatch("".join(self._scalar)):
                    return None
                self._expect = "comma or end"
        return character if character in _SPACE or self._structure(character) else None

    def _in_string(self, character: str) -> str:
        if character == '"':
            self._expect = "colon" if self._string_is_key else "comma or end"
            self.done = not self._stack
        elif character == "\\":
            self._expect = "escape"
        elif character < " ":
            return json.dumps(character)[1:-1]
        return character

    def _after_backslash(self, character: str) -> str | None:
        self._expect = "string"
        if character == "u":
            self._expect, self._hex_digits = "hex", 4
        return character if character in '"\\/bfnrtu' else None

    def _structure(self, character: str) -> bool:
        expect = self._expect
        if expect == "colon":
            self._expect = "value"
            return character == ":"
        if expect == "comma or end" and character == ",":
            self._expect = "key" if self._stack[-1] == "{" else "value"
            return True
        if character in "}]":
            return self._close(character)
        if expect in ("key", "key or end"):
            self._begin_string(is_key=True)
            return character == '"'
        if expect not in ("value", "value or end"):
            return False
        return self._begin_value(character)

    def _begin_value(self, character: str) -> bool:
        if character in "{[":
            self._stack.append(character)
            self._expect = "key or end" if character == "{" else "value or end"
        elif character == '"':
            self._begin_string(is_key=False)
        elif self._stack and character in _SCALAR_CHARACTERS:
            self._expect, self._scalar = "scalar", [character]
        else:
            return False
        return True

    def _begin_string(self, *, is_key: bool) -> None:
        self._expect, self._string_is_key = "string", is_key

    def _close(self, character: str) -> bool:
        opened = "{" if character == "}" else "["
        empty = "key or end" if character == "}" else "value or end"
        if not self._stack or self._stack[-1] != opened or self._expect not in ("comma or end", empty):
            return False
        self._stack.pop()
        self._expect = "comma or end"
        self.done = not self._stack
        return True


def pass_json(source: Source, sink: Sink, end: Markers = _NEVER) -> Steps[str | None]:
    """Pass one object, array or string on as it arrives.

    What is not JSON is passed on too, as it was written, up to the marker that ends the call: that marker is then
    used up and returned. A client gets what the model wrote and sees for itself that it is not JSON.
    """
    scanner = JsonScanner()
    while True:
        used, text = scanner.feed(source.rest())
        if used:
            source.take(used)
            sink(text)
        if scanner.done:
            return None
        if scanner.failed:
            return (yield from source.inside(end, sink))
        if source.ended:
            raise CutOff
        yield


def read_json(source: Source) -> Steps[Any]:
    """Any JSON value, whole; it must be one."""
    yield from source.skip_space()
    first = yield from source.peek()
    if not first:
        raise CutOff
    parts: list[str] = []
    if first in '{["':
        yield from _whole(source, parts)
    else:
        parts.append((yield from source.take_while(_SCALAR_CHARACTERS.__contains__)))
        if source.ended and not source.rest():
            raise CutOff
    try:
        return json.loads("".join(parts))
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def _whole(source: Source, parts: list[str]) -> Steps[None]:
    scanner = JsonScanner()
    while not scanner.done:
        used, text = scanner.feed(source.rest())
        source.take(used)
        parts.append(text)
        if scanner.failed:
            raise Malformed
        if not scanner.done:
            if source.ended:
                raise CutOff
            yield


@dataclass(frozen=True)
class Document:
    written: str
    mended: str


def read_ahead(source: Source) -> Steps[Document]:
    """The JSON object, array or string that the text goes on with; empty, and nothing used up, if it is none."""
    scanner = JsonScanner()
    taken: list[str] = []
    mended: list[str] = []
    while not scanner.done:
        used, text = scanner.feed(source.rest())
        taken.append(source.take(used))
        mended.append(text)
        if scanner.failed or (source.ended and not scanner.done):
            source.put_back("".join(taken))
            return Document("", "")
        if not scanner.done:
            yield
    return Document("".join(taken), "".join(mended))
