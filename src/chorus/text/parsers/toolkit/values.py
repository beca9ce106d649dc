"""Argument values that are not written as JSON: typed by the tool's schema, and written out as JSON."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STRING = frozenset({"string"})
NULLABLE_STRING = frozenset({"string", "null"})
_DEEPEST_REFERENCE = 8
_SHARED = ("$defs", "definitions", "x-guidance")
_LONGEST_LITERAL = 100_000
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolSchema:
    name: str
    schema: Mapping[str, Any] = field(default_factory=lambda: _NO_PARAMETERS)
    _known_types: dict[str, frozenset[str] | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, tool: Mapping[str, Any]) -> ToolSchema:
        """From the shapes in use: OpenAI's (nested or flat) and Anthropic's."""
        function = tool.get("function")
        spec: Mapping[str, Any] = function if isinstance(function, Mapping) else tool
        name = spec.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError("a tool has no name: give function.name")
        schema = spec.get("parameters") or spec.get("input_schema") or _NO_PARAMETERS
        return cls(name, {"type": "object"} | dict(schema))

    @property
    def parameters(self) -> Mapping[str, Any]:
        properties = self.resolved(self.schema).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        return frozenset(self.resolved(self.schema).get("required") or ())

    def standing_alone(self, schema: Any) -> Any:
        """A part of the schema, with what it refers to and what goes for the whole."""
        shared = {key: self.schema[key] for key in _SHARED if key in self.schema}
        return schema if schema is False else shared | dict({} if schema is True else schema)

    def resolved(self, schema: Any) -> Mapping[str, Any]:
        """What a schema refers to, in place of the reference; an empty one where there is nothing to go by."""
        for _ in range(_DEEPEST_REFERENCE):
            if not isinstance(schema, Mapping):
                return {}
            if not isinstance(schema.get("$ref"), str):
                return schema
            schema = referred(schema["$ref"], self.schema)
        return {}

    def types(self, parameter: str) -> frozenset[str] | None:
        """The JSON types its schema allows; None where the schema says nothing."""
        if parameter not in self.parameters:
            return None
        if parameter not in self._known_types:
            found = _types(self.parameters[parameter], self.schema, _DEEPEST_REFERENCE, {})
            self._known_types[parameter] = found
        return self._known_types[parameter]


def types_of(tool: ToolSchema | None, parameter: str) -> frozenset[str] | None:
    return tool.types(parameter) if tool else None


def _types(
    schema: Any, root: Mapping[str, Any], depth: int, known: dict[str, frozenset[str] | None]
) -> frozenset[str] | None:
    """`known` are the references that were followed before: each is followed once."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(map(str, declared)) or None
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return frozenset(map(json_type, schema["enum"]))
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = None
            known[reference] = _types(referred(reference, root), root, depth - 1, known)
        return known[reference]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return _union([_types(each, root, depth - 1, known) for each in schema[key]])
    for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        if (types := _types(each, root, depth - 1, known)) is not None:
            return types
    return None


def _union(choices: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [types for types in choices if types is not None]
    return frozenset().union(*known) if known and len(known) == len(choices) else None


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


def json_type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
    return "object"


def escaped(text: str) -> str:
    """The inside of a JSON string; pieces of a text escaped one by one join to the whole text escaped."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def encodable(text: str) -> bool:
    """False for half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if encodable(text) else json.dumps(value)


_TRUTH_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), "true"),
    **dict.fromkeys(("false", "no", "off", "0"), "false"),
    "null": "null",
}


def as_json(text: str, types: frozenset[str] | None) -> str:
    """A value given as bare text, as JSON of a type the schema allows; a string where it fits no other."""
    bare = text.strip()
    if types == STRING or (types == NULLABLE_STRING and bare != "null"):
        return quoted(text)
    if types == frozenset({"boolean"}) or types == frozenset({"boolean", "null"}):
        bare = _TRUTH_WORDS.get(bare.lower(), bare)
    value = parsed(bare)
    if value is not NO_VALUE and _fits(value, types):
        if types is not None and "integer" in types and "number" not in types and isinstance(value, float):
            return str(int(value))
        return bare
    if types is None or types & {"object", "array", "boolean", "null"}:
        literal = python_literal(bare)
        if literal is not NO_VALUE and _fits(literal, types) and not (types is None and isinstance(literal, str)):
            return dumped(literal)
    return quoted(text)


NO_VALUE: Any = object()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def parsed(text: str) -> Any:
    """The JSON value of a text, or NO_VALUE. Python's own additions (NaN and the like) are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NO_VALUE


def _fits(value: Any, types: frozenset[str] | None) -> bool:
    if types is None:
        return True
    kind = json_type(value)
    if kind == "integer":
        return bool(types & {"integer", "number"})
    if kind == "number":
        return "number" in types or ("integer" in types and value == value // 1 and abs(value) < 2**53)
    return kind in types


_JSON_NAMES = {"true": True, "false": False, "null": None}


def python_literal(text: str) -> Any:
    """The value of a Python literal, in which JSON's true, false and null may stand too; NO_VALUE for all else."""
    if len(text) > _LONGEST_LITERAL:
        return NO_VALUE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python has its own opinion on escapes such as \\/
            value = _plain(ast.parse(text.strip(), mode="eval").body)
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return NO_VALUE


def _plain(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_plain(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _plain(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("not a plain literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("an object's keys are strings")


_PATH_BEGINNINGS = ("/", "~/", "./", "../")
# Spaces are tried from their first one only: a long run of them is looked at once.
_SPACED_MARK = re.compile(r"(?:(?<! ) ++)?([/.]) *+")


def may_become_path(text: str) -> bool:
    return any(beginning.startswith(text) for beginning in _PATH_BEGINNINGS)


def is_path(text: str) -> bool:
    """One line that begins as a path does. A longer text (a file that begins with a comment, say) is none."""
    return text.startswith(_PATH_BEGINNINGS) and "\n" not in text


def tidy_path(text: str) -> str:
    """Some models put spaces around the marks of a path."""
    return _SPACED_MARK.sub(r"\1", text)
