"""A tool call that `max_tokens` cuts off: its client hears so, and sees neither its beginning nor half of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.scripted_engine import ScriptedEngine, say

QUESTION = "What is the weather in Paris?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FIRST = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BEGUN = ["<tool", "<tool_call>", '<tool_call>\n{"name": "wea', '<tool_call>\n{"name": "weather"', CALL[:50]]
"""In its first mark, before its name, in it, after it, and in its arguments."""
NAMED = 3
"""From here on a stream has told of the call."""


def chat(http: httpx.Client, **more: Any) -> httpx.Response:
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    body = {"messages": [{"role": "user", "content": QUESTION}], "tools": [tool], "max_tokens": 100}
    return http.post("/v1/chat/completions", json={**body, **more})


def responses(http: httpx.Client, **more: Any) -> httpx.Response:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    return http.post("/v1/responses", json={"input": QUESTION, "tools": [tool], "max_output_tokens": 100, **more})


def messages(http: httpx.Client, **more: Any) -> httpx.Response:
    tool = {"name": "weather", "input_schema": SCHEMA}
    body = {"messages": [{"role": "user", "content": QUESTION}], "tools": [tool], "max_tokens": 100}
    return http.post("/v1/messages", json={**body, **more})


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


@pytest.fixture
def say_cut(engine: ScriptedEngine, tokenizer: Tokenizer) -> Any:
    return lambda text: engine.next(say(tokenizer.encode(text, special=False), pb.LENGTH))


@pytest.mark.parametrize("begun", BEGUN)
def test_a_whole_answer_has_what_came_before_it_and_the_calls_that_are_complete(
    tool_http: httpx.Client, say_cut: Any, begun: str
) -> None:
    for before, calls in [("Let me look.", 0), (FIRST, 1)]:
        say_cut(before + begun)
        (choice,) = chat(tool_http).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert (choice["message"]["content"] or "") == ("" if calls else before)
        arguments = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", ())]
        assert arguments == ['{"city": "Rome"}'] * calls

        say_cut(before + begun)
        answer = responses(tool_http).json()
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["type"] for item in answer["output"]] == (["function_call"] if calls else ["message"])
        assert "tool_call>" not in json.dumps(answer["output"])

        say_cut(before + begun)
        answer = messages(tool_http).json()
        assert answer["stop_reason"] == "max_tokens"
        assert [block["type"] for block in answer["content"]] == (["tool_use"] if calls else ["text"])
        assert [block.get("input", {"city": "Rome"}) for block in answer["content"]] == [{"city": "Rome"}]


@pytest.mark.parametrize(("place", "begun"), list(enumerate(BEGUN)))
def test_a_stream_tells_of_a_call_from_its_name_on_and_never_of_its_markup(
    tool_http: httpx.Client, say_cut: Any, place: int, begun: str
) -> None:
    say_cut("Let me look." + begun)
    chunks = [chunk["choices"][0] for chunk in events(chat(tool_http, stream=True))]
    assert chunks[-1]["finish_reason"] == "length"
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "Let me look."
    assert any("tool_calls" in chunk["delta"] for chunk in chunks) == (place >= NAMED)

    say_cut("Let me look." + begun)
    told = events(responses(tool_http, stream=True))
    assert told[-1]["type"] == "response.incomplete"
    texts = [event["delta"] for event in told if event["type"] == "response.output_text.delta"]
    assert "".join(texts) == "Let me look."
    items = told[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["message", *["function_call"] * (place >= NAMED)]
    assert items[-1]["status"] == "incomplete"

    say_cut("Let me look." + begun)
    told = events(messages(tool_http, stream=True))
    assert [event["delta"]["stop_reason"] for event in told if event["type"] == "message_delta"] == ["max_tokens"]
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Let me look."


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_without_the_half_call(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, say_cut: Any, stream: bool
) -> None:
    say_cut("Let me look." + CALL[:50])
    answer = responses(tool_http, stream=stream)
    first = events(answer)[-1]["response"] if stream else answer.json()
    engine.next(say([70]))
    assert responses(tool_http, input="Go on.", previous_response_id=first["id"]).status_code == 200
    _, said, after = tokenizer.decode(engine.last.prompt).partition("assistant\nLet me look.")
    assert said
    assert "tool_call" not in after


def test_a_call_that_is_complete_when_the_limit_comes_is_a_call(tool_http: httpx.Client, say_cut: Any) -> None:
    for text in (CALL, CALL.removesuffix("</tool_call>"), CALL.removesuffix("}\n</tool_call>")):
        say_cut(text)
        (choice,) = chat(tool_http).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'


def test_an_answer_that_the_model_ends_itself_in_the_middle_of_a_mark_is_shown_as_it_is(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokenizer.encode("It is written <tool", special=False)))
    assert chat(tool_http).json()["choices"][0]["message"]["content"] == "It is written <tool"


def test_thinking_that_is_cut_off_shows_no_mark_either(tool_http: httpx.Client, say_cut: Any) -> None:
    say_cut("<think>A city, so I ask.</thi")
    message = chat(tool_http).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("A city, so I ask.", "")
