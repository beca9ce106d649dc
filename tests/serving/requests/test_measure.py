"""What a request may hold: each limit is named with its field, and looking takes no longer than the request is long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chorus.config.sections import ApiConfig
from chorus.serving.requests import measure
from chorus.serving.requests.measure import NotASchema, TooMuch

LIMITS = ApiConfig()
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "$defs": {
        "node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}
    },
}


def definitions(count: int, body: Any) -> dict[str, Any]:
    """Definitions of which each is made from the name of the next."""
    return {f"d{n}": body(f"#/$defs/d{n + 1}") for n in range(count)} | {f"d{count}": {"type": "integer"}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (nested(70), "64 levels"),
        ({"description": "x" * 300_000}, "262144 characters"),
        ({"$ref": "#/$defs/d0", "$defs": definitions(100, lambda name: {"$ref": name})}, "64 times in a row"),
        (
            {"$ref": "#/$defs/d0", "$defs": definitions(100, lambda name: {"properties": {"x": {"$ref": name}}})},
            "64 times in a row",
        ),
        (
            {"$ref": "#/$defs/d0", "$defs": definitions(30, lambda name: {"anyOf": [{"$ref": name}] * 2})},
            "16384 values, with all that it refers to",
        ),
        ({"anyOf": [{"$ref": "#"}] * 10}, "circle"),
        ({"properties": {str(n): {} for n in range(20_000)}}, "16384 values"),
    ],
)
def test_a_schema_that_is_too_much_is_told_by_how_much_is_taken(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(TooMuch, match=f"^field: .*{problem}"):
        measure.schema("field", schema, LIMITS)


@pytest.mark.parametrize("schema", [{}, TREE, nested(30), {"$defs": definitions(40, lambda name: {"$ref": name})}])
def test_schemas_as_people_write_them_are_taken(schema: dict[str, Any]) -> None:
    assert len(json.dumps(schema)) / 4 <= measure.schema("field", schema, LIMITS) + 1
    measure.well_formed("field", schema)


def test_references_into_one_large_part_are_followed_once() -> None:
    large = {"properties": {str(n): {"$ref": f"#/properties/{n}"} for n in range(4000)}}
    for part in large["properties"].values():
        part["properties"] = {"x": {"$ref": "#"}}  # type: ignore[assignment]
    with pytest.raises(TooMuch, match="circle"):
        measure.schema("field", large, LIMITS)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": 5},
        {"anyOf": []},
        {"enum": {}},
        {"required": [5]},
        {"properties": []},
        {"properties": {"a": {"minLength": "much"}}},
        {"items": {"maxItems": True}},
        {"allOf": [{"pattern": 7}]},
        {"$defs": {"a": 3}},
        {"type": [1]},
    ],
)
def test_what_is_no_schema_is_said_so(schema: dict[str, Any]) -> None:
    with pytest.raises(NotASchema, match=r"^field: .*schema"):
        measure.well_formed("field", schema)


def test_properties_may_have_the_names_of_keywords() -> None:
    measure.well_formed("field", {"properties": {"anyOf": {"type": "string"}, "required": True, "enum": {}}})


def test_arguments_of_a_call_are_an_object_or_stay_as_they_were_written() -> None:
    assert measure.arguments("field", '{"a": [1]}', 64) == {"a": [1]}
    assert measure.arguments("field", " ", 64) == {}
    assert measure.arguments("field", '{"a": ', 64) == '{"a": '
    for depth in (70, 250, 100_000):
        with pytest.raises(TooMuch, match=r"field: .*64 levels"):
            measure.arguments("field", "[" * depth + "]" * depth, 64)


def test_all_tools_together_have_a_limit_too() -> None:
    tools = [{"description": "x" * 200_000}] * 5
    measure.tools("tools", tools, 0, LIMITS)
    with pytest.raises(TooMuch, match=r"^tools: all tools together have at most 1048576 characters"):
        measure.tools("tools", [*tools, *tools], 0, LIMITS)
    with pytest.raises(TooMuch, match=r"^tools: at most 256 tools"):
        measure.tools("tools", [{}] * 257, 0, LIMITS)


def test_stop_strings_are_counted_and_measured() -> None:
    measure.stops("stop", ["x" * 1024] * 16, LIMITS)
    with pytest.raises(TooMuch, match=r"^stop: at most 16 stop strings"):
        measure.stops("stop", ["x"] * 17, LIMITS)
    with pytest.raises(TooMuch, match=r"^stop: .* at most 1024 characters"):
        measure.stops("stop", ["x" * 1025], LIMITS)
