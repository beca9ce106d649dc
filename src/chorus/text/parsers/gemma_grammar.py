"""Grammars of Gemma's calls: objects and lists as JSON has them, bare keys, strings between marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from chorus.text.parsers.toolkit import regexes
from chorus.text.parsers.toolkit.lark import CallsGrammar, Lark, repeated
from chorus.text.parsers.toolkit.members import checked_name, free_members, members, members_of
from chorus.text.parsers.toolkit.strings import ANNOTATIONS, OTHER_TYPES, Inexpressible, Strings, apart
from chorus.text.parsers.toolkit.values import ToolSchema

_KEY = "/[A-Za-z_][A-Za-z0-9_-]*/"
_BARE_KEY = re.compile(r"[A-Za-z0-9_$@.-]+")
_OF_ARRAYS = frozenset({"type", "items", "minItems", "maxItems"})
_ANYTHING = "anything"


def calls_grammar(opened: str, closed: str, quote: str) -> CallsGrammar:
    def call(lark: Lark, tool: ToolSchema) -> str:
        arguments = _Values(lark, tool, quote).arguments()
        return lark.join(lark.text(f"{opened}call:{checked_name(tool, lark.lenient)}"), arguments, lark.text(closed))

    return repeated(call)


class _Values:
    """Writes the values of one tool's schema. Rules have names by what they stand for, so that schemas may recur."""

    def __init__(self, lark: Lark, tool: ToolSchema, quote: str) -> None:
        self._lark = lark
        self._tool = tool
        self._quote = quote
        self._named: dict[str, str] = {}

    def arguments(self) -> str:
        members(self._tool, self._lark.lenient)  # for what it refuses
        return self._object(self._tool.resolved(self._tool.schema))

    def _value(self, schema: Any) -> str:
        try:
            return self._exact(schema)
        except Inexpressible:
            if not self._lark.lenient:
                raise
            return self._anything()

    def _exact(self, schema: Any) -> str:
        if schema is True or (isinstance(schema, Mapping) and not set(schema) - ANNOTATIONS):
            return self._anything()
        if not isinstance(schema, Mapping):
            raise Inexpressible("no value fits its schema")
        own = set(schema) - ANNOTATIONS
        if own == {"$ref"}:
            reference = schema["$ref"]
            return self._once(reference, lambda: self._value(dict(self._tool.resolved(schema)) or True))
        for key in ("anyOf", "oneOf"):
            if own == {key}:
                return self._lark.either([self._value(each) for each in schema[key]])
        if own == {"allOf"} and len(schema["allOf"]) == 1:
            return self._value(schema["allOf"][0])
        if "const" in schema or "enum" in schema:
            return self._listed(schema)
        if "$ref" in own or own & {"anyOf", "oneOf", "allOf"}:
            return self._strings(schema)
        declared = schema.get("type", ["string", *OTHER_TYPES])
        types = [declared] if isinstance(declared, str) else declared
        return self._lark.either([self._typed({**schema, "type": each}) for each in types])

    def _typed(self, schema: Mapping[str, Any]) -> str:
        match schema["type"]:
            case "string":
                return self._strings(schema)
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
        kept = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        return self._lark.json(kept)

    def _strings(self, schema: Mapping[str, Any]) -> str:
        parts = apart(schema, self._tool)
        if parts.rest is not None or not parts.strings:
            raise Inexpressible("several keywords that join schemas: write it as one schema or as anyOf alone")
        return self._lark.either([self._string(each) for each in parts.strings])

    def _string(self, strings: Strings) -> str:
        if strings.choices is not None:
            return self._lark.either([self._lark.text(self._written(choice)) for choice in strings.choices])
        ended = f"~/{regexes.containing(regexes.literal(self._quote))}/"
        text = " & ".join(["/(?s:.*)/", *(f"/{pattern}/" for pattern in strings.patterns), ended])
        return self._lark.join(self._lark.text(self._quote), self._lark.ended(self._lark.terminal(text), self._quote))

    def _listed(self, schema: Mapping[str, Any]) -> str:
        parts = apart(schema, self._tool)
        others = parts.rest["enum"] if parts.rest is not None else []
        choices = [choice for strings in parts.strings for choice in strings.choices or ()] + others
        if not choices:
            raise Inexpressible("no value fits its schema")
        return self._lark.either([self._lark.text(self._written(choice)) for choice in choices])

    def _written(self, value: Any) -> str:
        match value:
            case str() if self._quote in value:
                raise Inexpressible(f"the value {value!r} holds the mark that ends a string: take it out of the enum")
            case str():
                return f"{self._quote}{value}{self._quote}"
            case list():
                return "[" + ",".join(map(self._written, value)) + "]"
            case dict():
                return "{" + ",".join(f"{self._key(key)}:{self._written(each)}" for key, each in value.items()) + "}"
        return json.dumps(value)

    def _key(self, key: str) -> str:
        return key if self._lark.lenient or _BARE_KEY.fullmatch(key) else self._written(key)

    def _array(self, schema: Mapping[str, Any]) -> str:
        if unknown := sorted(set(schema) - ANNOTATIONS - _OF_ARRAYS):
            raise Inexpressible(f"{unknown[0]} of a list: describe its items by items alone")
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        item = self._value(schema.get("items", True))
        more = "*" if most is None and least <= 1 else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        listed = f'{item} ("," {item}){more}'
        return self._lark.rule(f'"[" {listed} "]"' if least else f'"[" ({listed})? "]"')

    def _object(self, schema: Mapping[str, Any]) -> str:
        lark = self._lark
        if (value := free_members(schema, lark.lenient)) is not None:
            member = lark.rule(f'{_KEY} ":" {self._value(value)}')
            return lark.rule(f'"{{" ({member} ("," {member})*)? "}}"')
        listed = [
            (lark.rule(lark.join(lark.text(f"{self._key(each.name)}:"), self._value(each.schema))), each.required)
            for each in members_of(schema, lark.lenient)
        ]
        return lark.rule(lark.join('"{"', lark.listed(listed, ","), '"}"'))

    def _anything(self) -> str:
        def body() -> str:
            return self._lark.either([self._typed({"type": each}) for each in ("string", *OTHER_TYPES)])

        return self._once(_ANYTHING, body)

    def _once(self, name: str, body: Callable[[], str]) -> str:
        """A rule that may hold itself: it has its name before its body is known."""
        if name not in self._named:
            self._named[name] = self._lark.reserve()
            self._lark.fill(self._named[name], body())
        return self._named[name]
