"""What a JSON schema says of strings, apart from all other values: needed where strings are written as bare text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from chorus.errors import ChorusError
from chorus.text.parsers.toolkit import regexes
from chorus.text.parsers.toolkit.values import ToolSchema, json_type

OTHER_TYPES = ("object", "array", "number", "integer", "boolean", "null")
# Keywords that say nothing of what a value is.
ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "$anchor",
        "$defs",
        "definitions",
        "x-guidance",
        "contentEncoding",
        "contentMediaType",
    }
)
_OF_STRINGS = frozenset({"pattern", "minLength", "maxLength", "format"})
_JOINED = ("anyOf", "oneOf", "allOf", "$ref")
_DEEPEST = 16
_MOST_STRINGS = 1000


class Inexpressible(ChorusError, ValueError):
    """A schema asks for what a markup cannot be held to. The message says what, and what to do."""


@dataclass(frozen=True)
class Strings:
    """Strings of one kind: those of a list, or all that every pattern matches as a whole."""

    choices: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        return self.choices is None and not self.patterns

    def and_also(self, other: Strings) -> Strings:
        if self.choices is None and other.choices is None:
            return Strings(None, self.patterns + other.patterns)
        listed, limits = (self, other) if self.choices is not None else (other, self)
        if limits.patterns or listed.patterns:
            raise Inexpressible("a list of values in one part of allOf and a pattern in another: write it as one enum")
        both = [choice for choice in listed.choices or () if limits.choices is None or choice in limits.choices]
        return Strings(tuple(both))


@dataclass(frozen=True)
class Parts:
    """A schema taken apart. `rest` is the schema of all that is no string, None where there is nothing else."""

    strings: tuple[Strings, ...]
    rest: Mapping[str, Any] | None


def apart(schema: Any, tool: ToolSchema, depth: int = _DEEPEST) -> Parts:
    """Raises Inexpressible where strings cannot be told from the rest."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping) or depth == 0:
        raise Inexpressible("no value fits its schema" if schema is False else "its references go in a circle")
    joined = [key for key in _JOINED if key in schema]
    own = {key: value for key, value in schema.items() if key not in joined}
    parts = [_joined(key, schema[key], tool, depth - 1) for key in joined]
    if not joined or set(own) - ANNOTATIONS:
        parts.append(_own(own))
    return _all_of(parts)


def _joined(key: str, value: Any, tool: ToolSchema, depth: int) -> Parts:
    if key == "$ref":
        return apart(dict(tool.resolved({"$ref": value})) or True, tool, depth)
    parts = [apart(each, tool, depth) for each in value]
    if key == "allOf":
        return _all_of(parts)
    rests = [part.rest for part in parts if part.rest is not None]
    rest = rests[0] if len(rests) == 1 else {key: rests} if rests else None
    return Parts(tuple(strings for part in parts for strings in part.strings), rest)


def _all_of(parts: list[Parts]) -> Parts:
    if len(parts) == 1:
        return parts[0]
    if all(part.rest is not None for part in parts):
        raise Inexpressible("allOf over strings and other values: write it as one schema")
    if prod(len(part.strings) for part in parts) > _MOST_STRINGS:
        raise Inexpressible("allOf over many alternatives: write it as one schema")
    strings = []
    for chosen in product(*(part.strings for part in parts)):
        both = Strings()
        for each in chosen:
            both = both.and_also(each)
        strings.append(both)
    return Parts(tuple(strings), None)


def _own(schema: Mapping[str, Any]) -> Parts:
    declared = schema.get("type", ["string", *OTHER_TYPES])
    types = [declared] if isinstance(declared, str) else list(declared)
    if "const" in schema or "enum" in schema:
        return _listed(schema, types)
    others = [each for each in types if each != "string"]
    rest = {key: value for key, value in schema.items() if key not in _OF_STRINGS} | {"type": others}
    strings = (Strings(None, _patterns(schema)),) if "string" in types else ()
    return Parts(strings, rest if others else None)


def _listed(schema: Mapping[str, Any], types: list[str]) -> Parts:
    values = [schema["const"]] if "const" in schema else list(schema["enum"])
    choices = tuple(value for value in values if isinstance(value, str) and "string" in types and _fits(value, schema))
    others = [value for value in values if not isinstance(value, str) and _one_of(json_type(value), types)]
    kept = {key: value for key, value in schema.items() if key not in {"const", "enum", "type", *_OF_STRINGS}}
    return Parts((Strings(choices),) if choices else (), {**kept, "enum": others} if others else None)


def _one_of(kind: str, types: list[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _fits(value: str, schema: Mapping[str, Any]) -> bool:
    if "pattern" in schema:
        # A client's pattern on its own texts can take for ever here; what runs grammars is made for that.
        raise Inexpressible("a list of values and a pattern: list those that it matches, and leave the pattern out")
    return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))


def _patterns(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    if shortest or longest is not None:
        found.append(regexes.length(shortest, longest))
    if "pattern" in schema:
        try:
            found.append(regexes.whole(schema["pattern"]))
        except regexes.NotWhole as error:
            message = f"the pattern {schema['pattern']!r} has {error}: put anchors at its ends only"
            raise Inexpressible(message) from None
    if "format" in schema:
        if schema["format"] not in regexes.FORMATS:
            raise Inexpressible(f"the format {schema['format']!r}: give a pattern in its place")
        found.append(regexes.FORMATS[schema["format"]])
    return tuple(found)
