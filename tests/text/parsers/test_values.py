from __future__ import annotations

import json
from typing import Any

import pytest

from chorus.text.parsers.toolkit.values import ToolSchema, as_json, python_literal, tidy_path


def typed(text: str, schema: Any) -> Any:
    tool = ToolSchema("f", {"properties": {"x": schema}, "$defs": {"n": {"type": "integer"}}})
    return json.loads(as_json(text, tool.types("x")))


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ('"q"', {"type": "string"}, '"q"'),
        (" x ", {"type": "string"}, " x "),
        ("5", {"enum": ["5", "6"]}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("\n5\n", {"type": "number"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("1.5", {"type": "integer"}, "1.5"),
        ("NaN", {"type": "number"}, "NaN"),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': [True, None]}", {"type": "object"}, {"a": [True, None]}),
        ("[1", {"type": "array"}, "[1"),
        ("null", {"type": ["string", "null"]}, None),
        ("5", {"type": ["string", "null"]}, "5"),
        ('"q"', {"type": ["string", "null"]}, '"q"'),
        ("None", {"type": ["string", "null"]}, "None"),
        ("yes", {"type": "boolean"}, True),
        ("0", {"type": "boolean"}, False),
        ("yes", {"type": ["boolean", "string"]}, "yes"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"$ref": "#/$defs/n"}, 5),
        ("5", {"$ref": "#/$defs/none"}, 5),
        ("5", {"allOf": [{"type": "string"}]}, "5"),
        ("5", {"const": "5"}, "5"),
        ("5", {}, 5),
        ("text", {}, "text"),
        ("'text'", {}, "'text'"),
        ("", {}, ""),
    ],
)
def test_a_value_is_typed_by_its_schema(text: str, schema: Any, value: Any) -> None:
    assert typed(text, schema) == value


def test_a_parameter_without_a_schema_is_json_if_it_parses() -> None:
    assert ToolSchema("f", {}).types("x") is None


def test_only_plain_literals_are_taken_for_values() -> None:
    assert python_literal("{'a': (1, -2.5), 'b': true}") == {"a": [1, -2.5], "b": True}
    for text in ("__import__('os')", "{1: 2}", "b'x'", "1j", "f'{x}'", "{1, 2}", "1e999", "..."):
        assert not isinstance(python_literal(text), (dict, list, str, int, float))


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        ("/usr / local", "/usr/local"),
        ("~/ my file . txt", "~/my file.txt"),
        ("./a /b", "./a/b"),
        ("../ .. / a", "../../a"),
        ("/a b", "/a b"),
    ],
)
def test_spaces_around_the_marks_of_a_path_are_removed(text: str, tidied: str) -> None:
    assert tidy_path(text) == tidied


def test_a_tool_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give function\.name"):
        ToolSchema.of({"type": "function", "function": {}})
