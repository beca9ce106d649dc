"""Calls whose arguments are JSON: `{"name": …, "arguments": {…}}`, and a bare object after a name."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from chorus.text.parsers.toolkit.jsonscan import pass_json, read_json
from chorus.text.parsers.toolkit.outline import Answer
from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Source, Steps
from chorus.text.parsers.toolkit.values import dumped, encodable

_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_NAME_KEYS = ("name", "function", "tool_name")
_KNOWN_KEYS = frozenset((*_ARGUMENT_KEYS, *_NAME_KEYS, "id", "type"))
_NOTHING = Markers(())
_COMMA_OR_END = Markers((",", "}"))


def valid_name(name: object) -> str:
    """A name that can be sent on; anything else was no call."""
    if not isinstance(name, str) or not name.strip():
        raise Malformed
    if not encodable(name):
        raise Malformed
    return name.strip()


class JsonCall:
    """Reads one call object. The call is given as soon as its name is known, its arguments as they arrive."""

    def __init__(
        self, source: Source, answer: Answer, end: Markers = _NOTHING, only: Collection[str] | None = None
    ) -> None:
        self._source = source
        self._answer = answer
        self._end = end
        self._only = only
        self._id: str | None = None
        self._early_arguments: str | None = None
        self._started = False
        self._argued = False

    def read(self, *, opened: bool = False) -> Steps[str | None]:
        """Returns the marker that ended the call, where bad JSON had to be read up to it."""
        if not opened:
            yield from self._source.expect(Markers(("{",)))
        marker = yield from self._members()
        if marker is None and not self._started:
            raise Malformed
        if not self._argued:
            self._answer.arguments(self._early_arguments or "{}")
        return marker

    def _members(self, nested: bool = False) -> Steps[str | None]:
        yield from self._source.skip_space()
        if (yield from self._source.take_marker(Markers(("}",)))):
            return None
        while True:
            key = yield from self._key()
            yield from self._source.expect(Markers((":",)))
            yield from self._source.skip_space()
            marker = yield from self._member(key, nested)
            if marker is not None:
                return marker
            if (yield from self._source.expect(_COMMA_OR_END)) == "}":
                return None

    def _key(self) -> Steps[str]:
        yield from self._source.skip_space()
        if (yield from self._source.peek()) not in ('"', ""):
            raise Malformed
        key = yield from read_json(self._source)
        if not isinstance(key, str) or (self._only is not None and key not in _KNOWN_KEYS):
            raise Malformed
        return key

    def _member(self, key: str, nested: bool) -> Steps[str | None]:
        if key in _ARGUMENT_KEYS:
            return (yield from self._arguments())
        if key in ("function", "tool") and not nested and (yield from self._source.peek()) == "{":
            self._source.take(1)
            return (yield from self._members(nested=True))
        value = yield from read_json(self._source)
        if key == "id" and isinstance(value, str) and encodable(value):
            self._id = value
        elif key in _NAME_KEYS and not self._started:
            self._start(value)
        return None

    def _start(self, name: Any) -> None:
        name = valid_name(name)
        if self._only is not None and name not in self._only:
            raise Malformed
        self._answer.start(name, self._id)
        self._started = True

    def _arguments(self) -> Steps[str | None]:
        first = yield from self._source.peek()
        if self._started and not self._argued and first not in ('"', "n"):
            self._argued = True
            return (yield from pass_json(self._source, self._answer.arguments, self._end))
        text = _arguments_text((yield from read_json(self._source)))
        if self._started and not self._argued:
            self._argued = True
            self._answer.arguments(text)
        elif not self._argued:
            self._early_arguments = text
        return None


def _arguments_text(value: Any) -> str:
    """Arguments that came as a JSON text inside a string are taken out of it; none at all are an empty object."""
    if isinstance(value, str):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            return value if encodable(value) else dumped(inner)
    return "{}" if value is None or value == "" else dumped(value)


def bare_arguments(source: Source, answer: Answer, end: Markers) -> Steps[str | None]:
    """The JSON object after a name; none before the end is an empty object. Returns the marker if it was used up."""
    yield from source.skip_space()
    if marker := (yield from source.take_marker(end)):
        answer.arguments("{}")
        return marker
    if not (yield from source.peek()):
        raise CutOff
    return (yield from pass_json(source, answer.arguments, end))


def take_name(source: Source, extra: str = "") -> Steps[str]:
    """A function's name, up to the first character that no name has."""
    name = yield from source.take_while(lambda c: c.isalnum() or c in "_-.:/" or c in extra)
    if not (yield from source.peek()):
        raise CutOff
    return valid_name(name)
