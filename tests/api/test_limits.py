"""What a request may hold: a client that sends more is told which field, and how much is taken."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.scripted_engine import ScriptedEngine, say

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
MANY_LOGPROBS = {"logprobs": True, "top_logprobs": 20, "n": 64}
CHATTING = {"messages": [HELLO]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def tool(schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def formatted(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


CHAIN = {
    "$ref": "#/$defs/d0",
    "$defs": {**{f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(100)}, "d100": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        (CHAT, {**CHATTING, "stop": "x" * 1025}, "stop", "1024 characters"),
        (CHAT, {"messages": [HELLO] * 4097}, "messages", "4096 messages"),
        (CHAT, {**CHATTING, "grammar": "x" * 262_145}, "grammar", "262144 characters"),
        (CHAT, {**CHATTING, "guided_choice": ["x" * 262_145]}, "guided_choice", "262144 characters"),
        (CHAT, {**CHATTING, "guided_json": json.dumps({"enum": nested(80)})}, "guided_json", "64 levels"),
        (CHAT, {**CHATTING, "guided_json": "[" * 100_000}, "guided_json", "64 levels"),
        (CHAT, {**CHATTING, "response_format": formatted({"enum": nested(80)})}, "response_format", "64 levels"),
        (CHAT, {**CHATTING, "response_format": formatted(CHAIN)}, "response_format", "64 times in a row"),
        (CHAT, {**CHATTING, "tools": [tool({"enum": nested(80)})]}, "tools[0]", "64 levels"),
        (CHAT, {**CHATTING, "tools": [tool({"anyOf": [{"$ref": "#"}] * 9})]}, "tools[0]", "circle"),
        (CHAT, {**CHATTING, "chat_template_kwargs": {"a": nested(80)}}, "chat_template_kwargs", "64 levels"),
        (CHAT, {**CHATTING, **MANY_LOGPROBS, "max_tokens": 100}, "top_logprobs", "131072"),
        (CHAT, {**CHATTING, "model": "x" * 2000}, "model", "1024 characters"),
        (CHAT, {**CHATTING, "metadata": {str(n): "" for n in range(17)}}, "metadata", "16 items"),
        (CHAT, {**CHATTING, "chat_template_kwargs": {"a": [[]] * 70_000}}, None, "65536 objects and lists"),
        ("/v1/completions", {"prompt": "x", "stop": ["x" * 1025]}, "stop", "1024 characters"),
        ("/v1/messages", {"max_tokens": 1, "messages": [HELLO] * 4097}, "messages", "4096 messages"),
        ("/v1/messages", {"max_tokens": 1, **CHATTING, "stop_sequences": ["x" * 1025]}, "stop_sequences", "1024"),
        ("/v1/messages/count_tokens", {"messages": [HELLO] * 4097}, "messages", "4096 messages"),
        ("/v1/responses", {"input": [HELLO] * 4097}, "input", "4096 items"),
        ("/tokenize", {"messages": [HELLO] * 4097}, "messages", "4096 messages"),
    ],
)
def test_what_is_too_much_is_named_with_the_limit(
    http: httpx.Client, path: str, body: dict[str, Any], field: str | None, words: str
) -> None:
    response = http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert words in error["message"]
    if "messages" not in path.split("/"):
        assert error["param"] == field


def test_log_probabilities_of_an_answer_without_a_length_are_cut_to_fit(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.default = say([70])
    assert http.post(CHAT, json={**CHATTING, **MANY_LOGPROBS}).status_code == 200
    assert {run.submit.max_tokens for run in engine.runs} == {131_072 // (64 * 21)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("number", "status"), [("1" + "0" * 30, 200), ("1e999", 400), ("-1.5e-400", 200)])
def test_numbers_of_any_size_in_a_schema_are_given_back_or_refused(
    http: httpx.Client, engine: ScriptedEngine, stream: bool, number: str, status: int
) -> None:
    engine.next(say([70]))
    schema = '{"type": "integer", "maximum": ' + number + "}"
    tools = '[{"type": "function", "name": "f", "parameters": ' + schema + "}]"
    raw = f'{{"input": "hello", "stream": {str(stream).lower()}, "tools": {tools}}}'
    response = http.post("/v1/responses", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert "server_error" not in response.text
