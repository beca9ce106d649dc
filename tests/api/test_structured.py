"""Answers that a grammar shapes: what reaches the engine forces what was asked for."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest
from llguidance import LLTokenizer

from chorus.messages.proto import engine_pb2 as pb
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import ScriptedEngine

QUESTION = [{"role": "user", "content": "Tell me."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["city", "river"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


@pytest.fixture
def ask(tool_http: httpx.Client, engine: ScriptedEngine, grammar_tokens: LLTokenizer) -> Any:
    engine.default = obey(grammar_tokens)

    def ask(path: str = "/v1/chat/completions", **options: Any) -> str:
        prompt = {"messages": QUESTION} if "chat" in path else {"prompt": "Tell me."}
        response = tool_http.post(path, json={**prompt, "max_tokens": 900, "seed": 5, **options})
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert choice["finish_reason"] == "stop"
        return str(choice["message"]["content"] if "chat" in path else choice["text"])

    return ask


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema(ask: Any, strict: bool | None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": strict}}
    jsonschema.validate(json.loads(ask(response_format=form)), SCHEMA)


def test_a_json_object(ask: Any) -> None:
    assert isinstance(json.loads(ask(response_format={"type": "json_object"})), dict)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("value", [SCHEMA, json.dumps(SCHEMA)])
def test_guided_json_as_object_or_text(ask: Any, path: str, value: Any) -> None:
    jsonschema.validate(json.loads(ask(path, guided_json=value)), SCHEMA)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guided_regex(ask: Any, path: str) -> None:
    assert re.fullmatch(r"[a-c]{3}/\d", ask(path, guided_regex=r"[a-c]{3}/\d"))


def test_guided_choice(ask: Any) -> None:
    assert ask(guided_choice=['say "yes"', "nö"]) in ('say "yes"', "nö")


@pytest.mark.parametrize("name", ["grammar", "guided_grammar"])
@pytest.mark.parametrize("source", ['start: "a" /[0-9]{2}/', 'root ::= "a" digit digit\ndigit ::= [0-9]'])
def test_a_grammar_in_lark_or_gbnf(ask: Any, name: str, source: str) -> None:
    assert re.fullmatch(r"a\d\d", ask(**{name: source}))


def test_a_model_that_thinks_may_think_before_the_document(ask: Any, engine: ScriptedEngine) -> None:
    options = {"response_format": {"type": "json_object"}, "chat_template_kwargs": {"enable_thinking": True}}
    # The obedient engine closes reasoning that it opened; this one was opened by the template.
    engine.default = lambda run: run.finish(pb.STOP)
    ask(**options)
    assert engine.last.grammar.parts
    assert "</think>" in engine.last.grammar.source


def test_a_schema_that_cannot_be_enforced_says_why(tool_http: httpx.Client) -> None:
    schema = {"oneOf": [{"type": "string", "pattern": "a+"}, {"type": "string"}]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = tool_http.post("/v1/chat/completions", json={"messages": QUESTION, "response_format": form})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "invalid_grammar")
    assert "oneOf" in error["message"]


def test_an_answer_cut_off_says_length(
    tool_http: httpx.Client, engine: ScriptedEngine, grammar_tokens: LLTokenizer
) -> None:
    engine.default = obey(grammar_tokens)
    body = {"prompt": "Tell me.", "guided_regex": "[ab]{50}", "max_tokens": 3}
    (choice,) = tool_http.post("/v1/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert re.fullmatch("[ab]{3,49}", choice["text"])


def test_space_between_values_is_bounded(ask: Any) -> None:
    text = ask(guided_json=SCHEMA)
    assert not re.search(r"\s{18}", text)
