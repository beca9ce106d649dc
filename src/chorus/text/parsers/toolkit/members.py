"""The members of an object, as a grammar that writes them one after the other needs them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chorus.text.parsers.toolkit.strings import ANNOTATIONS, Inexpressible
from chorus.text.parsers.toolkit.values import ToolSchema

_UNDERSTOOD = ANNOTATIONS | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "unevaluatedProperties",
    "minProperties",
    "maxProperties",
}
_CALLABLE = re.compile(r"[A-Za-z0-9_.:/-]+")


@dataclass(frozen=True)
class ObjectMember:
    name: str
    schema: Any
    required: bool


def checked_name(tool: ToolSchema, lenient: bool = False) -> str:
    if not lenient and not _CALLABLE.fullmatch(tool.name):
        raise Inexpressible(f"the name {tool.name!r}: use letters, digits, _ and -")
    return tool.name


def any_members(tool: ToolSchema, lenient: bool) -> Mapping[str, Any] | None:
    """The schema of a tool's parameters where they may have any name, {} for anything; None where they have names."""
    return free_members(tool.resolved(tool.schema), lenient)


def free_members(schema: Mapping[str, Any], lenient: bool) -> Mapping[str, Any] | None:
    extra = schema.get("additionalProperties", True)
    if schema.get("properties") is not None or schema.get("required") or extra is False:
        return None
    if not lenient:
        _check_keywords(schema, fewest=0, most=None)
    return extra if isinstance(extra, Mapping) else {}


def members(tool: ToolSchema, lenient: bool) -> list[ObjectMember]:
    if not lenient:
        _check_references(tool.schema)
    return members_of(tool.resolved(tool.schema), lenient)


def members_of(schema: Mapping[str, Any], lenient: bool) -> list[ObjectMember]:
    """Those under `properties` in their order, then those that are required only. Others are never written."""
    known: Mapping[str, Any] = schema.get("properties") or {}
    required = dict.fromkeys(schema.get("required") or ())
    extra = schema.get("additionalProperties", True)
    possible = {name: each for name, each in known.items() if each is not False}
    found = [ObjectMember(name, each, name in required) for name, each in possible.items()]
    found += [ObjectMember(name, extra, True) for name in required if name not in known]
    if not lenient:
        _check_keywords(schema, fewest=len(required), most=len(found))
        if any(known.get(name, extra) is False for name in required):
            raise Inexpressible("a required member that may not be there: add it to the properties")
    return found


def _check_keywords(schema: Mapping[str, Any], fewest: int, most: int | None) -> None:
    """`fewest` and `most` members are written in any case; most is None where there is no bound."""
    if unknown := sorted(set(schema) - _UNDERSTOOD):
        raise Inexpressible(f"{unknown[0]} beside the properties: list the members under properties alone")
    above = "maxProperties" in schema and (most is None or schema["maxProperties"] < most)
    if schema.get("minProperties", 0) > fewest or above:
        raise Inexpressible("minProperties or maxProperties: say it by required and properties")


def _check_references(schema: Any) -> None:
    """Parts of a schema stand in a grammar by themselves; only the definitions go with them."""
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
            raise Inexpressible(f"the reference {reference!r}: move what it refers to under $defs")
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for each in inner:
        _check_references(each)
