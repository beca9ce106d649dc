"""Calls whose arguments stand between tags, one by one, as bare text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from chorus.text.parsers.toolkit.jsonscan import Document, read_ahead
from chorus.text.parsers.toolkit.outline import Answer
from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Sink, Source, Steps, one
from chorus.text.parsers.toolkit.values import (
    NULLABLE_STRING,
    STRING,
    ToolSchema,
    as_json,
    escaped,
    is_path,
    may_become_path,
    quoted,
    tidy_path,
    types_of,
)

CDATA = "<![CDATA["
CDATA_END = "]]>"
_JSON_BEGINS = frozenset('{["')


def plain_name(header: str) -> str:
    """`<parameter=city>`: all of it is the name, quoted at times."""
    name = header.strip().strip("\"'").strip()
    if not name or re.search(r"[\s<>]", name):
        raise Malformed
    return name


def attribute(header: str, key: str) -> str | None:
    found = re.search(rf"\b{key}\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'<>]+))", header)
    if found is None:
        return None
    value = next(group for group in found.groups() if group is not None)
    return value.replace("&quot;", '"').replace("&amp;", "&")


def named_by(key: str) -> Callable[[str], str]:
    """`<parameter name="city">`: the name is an attribute."""

    def name_of(header: str) -> str:
        if not (name := attribute(header, key)):
            raise Malformed
        return name

    return name_of


@dataclass(frozen=True)
class Tags:
    """How a family writes one argument after the other, and the end of the call."""

    parameter: str
    header_end: str
    value_end: str
    call_end: str
    name_of: Callable[[str], str] = plain_name
    # True or False where the tag itself says whether its value is a string; None: the tool's schema says.
    is_string: Callable[[str], bool | None] = lambda header: None
    value_open: str = ""
    # The value stands on lines of its own; the line break at each side is layout.
    own_lines: bool = False
    cdata: bool = False
    tidy_paths: bool = False


class TaggedArguments:
    """Reads the arguments of one call up to its end and gives them as JSON, strings as they arrive."""

    def __init__(self, source: Source, answer: Answer, tags: Tags, tool: ToolSchema | None) -> None:
        self._source = source
        self._answer = answer
        self._tags = tags
        self._tool = tool
        self._begun = False
        self._next = Markers((tags.parameter, tags.call_end))
        breaks = (f"\n{tags.value_end}", tags.value_end) if tags.own_lines else (tags.value_end,)
        self._value_end = Markers(breaks)

    def read(self, marker: str | None = None) -> Steps[None]:
        """From the marker on, if that was read. Text between the tags has no place in a call: it becomes Content."""
        while True:
            marker = marker or (yield from self._source.inside(self._next, _Stray(self._answer)))
            if marker == self._tags.call_end:
                break
            header = yield from self._source.header(self._tags.header_end)
            name = self._tags.name_of(header)
            if self._tags.value_open:
                yield from self._source.expect(one(self._tags.value_open))
            yield from self._value(name, _types(self._tags.is_string(header), types_of(self._tool, name)))
            self._source.commit()
            marker = None
        self._answer.arguments("}" if self._begun else "{}")

    def _value(self, name: str, types: frozenset[str] | None) -> Steps[None]:
        lead = f"{', ' if self._begun else '{'}{quoted(name)}: "
        if self._tags.own_lines:
            yield from self._source.take_marker(one("\n"))
        space = (yield from self._source.skip_space()) if self._tags.cdata else ""
        is_cdata = self._tags.cdata and (yield from self._source.take_marker(one(CDATA)))
        end = one(CDATA_END) if is_cdata else self._value_end
        space = "" if is_cdata else space
        if types == STRING:
            yield from self._string(lead, space, end)
        else:
            parts = [space]
            try:
                yield from self._whole(end, parts, types)
            except CutOff:
                self._answer.arguments(lead + "".join(parts))
                raise
            self._begun = True
            self._answer.arguments(lead + self._as_json("".join(parts), types))
        if is_cdata:
            yield from self._source.expect(one(self._tags.value_end))

    def _whole(self, end: Markers, parts: list[str], types: frozenset[str] | None) -> Steps[None]:
        """A value that is no plain string, up to its end, which may also stand inside a JSON text and mean nothing."""
        document = Document("", "")
        if types != NULLABLE_STRING:
            parts.append((yield from self._source.skip_space()))
            if (yield from self._source.peek()) in _JSON_BEGINS:
                document = yield from read_ahead(self._source)
        parts.append(document.written)
        place = len(parts)
        yield from self._source.inside(end, parts.append)
        if not "".join(parts[place:]).strip():
            parts[place - 1] = document.mended

    def _string(self, lead: str, space: str, end: Markers) -> Steps[None]:
        self._begun = True
        self._answer.arguments(f'{lead}"{escaped(space)}')
        pass_on: Sink = lambda text: self._answer.arguments(escaped(text))  # noqa: E731
        tidier = _PathTidier(pass_on) if self._tags.tidy_paths else None
        try:
            yield from self._source.inside(end, tidier or pass_on)
        finally:  # also where the text was cut off: what was held is still part of the value
            if tidier:
                tidier.close()
        self._answer.arguments('"')

    def _as_json(self, value: str, types: frozenset[str] | None) -> str:
        if self._tags.tidy_paths and (types is None or "string" in types) and is_path(value):
            return quoted(tidy_path(value))
        return as_json(value, types)


def _types(is_string: bool | None, declared: frozenset[str] | None) -> frozenset[str] | None:
    """A tag that calls its value no string decides where the schema leaves it open."""
    if is_string:
        return STRING
    open_to_both = is_string is False and declared is not None and declared > STRING
    return None if open_to_both else declared


class _Stray:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._begun = False

    def __call__(self, text: str) -> None:
        text = text if self._begun else text.lstrip()
        if text:
            self._begun = True
            self._answer.content(text)


class _PathTidier:
    """Holds a value back while it may be a path: only its end, or a line break, tells."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[str] | None = []
        self._is_path = False

    def __call__(self, text: str) -> None:
        if self._held is None:
            self._sink(text)
            return
        self._held.append(text)
        # What is a path stays one until its line ends, so only the beginning is ever looked at again.
        known = text if self._is_path else "".join(self._held)
        self._is_path = "\n" not in text if self._is_path else is_path(known)
        if not self._is_path and not may_become_path(known):
            self._sink("".join(self._held))
            self._held = None

    def close(self) -> None:
        if self._held is not None:
            held = "".join(self._held)
            self._sink(tidy_path(held) if is_path(held) else held)
