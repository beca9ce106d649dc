from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.scripted_engine import Run, ScriptedEngine, refuse, say, say_until_cancelled

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def says(tokenizer: Tokenizer, text: str, finish: pb.Finish = pb.STOP, cached: int = 0) -> Any:
    return say(tokenizer.encode(text, special=False), finish, cached)


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post(PATH, json={"max_tokens": 100, "messages": HELLO, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def events_of(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    response = http.post(PATH, json={"max_tokens": 100, "messages": HELLO, "stream": True, **body})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_an_answer_in_one_body(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Sunny.", cached=4))
    answer = create(tool_http, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert answer["content"] == [{"type": "text", "text": "Sunny.", "citations": None}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["usage"]["cache_read_input_tokens"] == 4
    assert answer["usage"]["input_tokens"] == len(engine.last.prompt) - 4
    assert tokenizer.decode(engine.last.prompt).startswith("system\nBe brief.")


def test_a_stream_of_thinking_text_and_a_call(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Hm.</think>See: " + CALL))
    thinking = {"type": "enabled", "budget_tokens": 50}
    events = [event for event in events_of(tool_http, tools=[WEATHER], thinking=thinking) if event["type"] != "ping"]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    assert kinds.count("content_block_stop") == 3
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "content_block_delta":
            kind, text = [value for value in event["delta"].values() if isinstance(value, str)]
            joined[kind] = joined.get(kind, "") + text
    assert joined["thinking_delta"] == "Hm."
    assert joined["text_delta"].strip() == "See:"
    assert json.loads(joined["input_json_delta"]) == {"city": "Paris"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] > 0
    assert tokenizer.decode(engine.last.prompt).endswith("<think>\n")


def test_a_call_and_its_result(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, CALL), says(tokenizer, "Sunny."))
    answer = create(tool_http, tools=[WEATHER])
    (use,) = answer["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Paris"})
    assert answer["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "sun"}]}
    history = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
    ]
    create(tool_http, tools=[WEATHER], messages=history)
    prompt = tokenizer.decode(engine.last.prompt)
    assert '<think>\nHm.\n</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}' in prompt
    assert "tool\nsun\nuser\nGo on." in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.next(say_until_cancelled(tokenizer.encode("one two three", special=False)))
    options = {"stop_sequences": ["zzz", " three"]}
    answer = events_of(tool_http, **options)[-2]["delta"] if stream else create(tool_http, **options)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " three")


def test_a_limit_is_a_ceiling_and_need_not_fit(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Sun", pb.LENGTH))
    assert create(tool_http, max_tokens=1_000_000)["stop_reason"] == "max_tokens"
    assert engine.last.max_tokens == engine.description.context_length - len(engine.last.prompt)


def test_an_answer_begun_by_the_client_is_continued(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, " sunny."))
    create(tool_http, messages=[*HELLO, {"role": "assistant", "content": "It is"}])
    assert tokenizer.decode(engine.last.prompt).endswith("assistant\nIt is")


def test_counted_tokens_are_those_of_the_prompt(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "x"))
    body = {"messages": HELLO, "system": "Be brief.", "tools": [WEATHER]}
    counted = tool_http.post(f"{PATH}/count_tokens", json=body).json()
    create(tool_http, system="Be brief.", tools=[WEATHER])
    assert counted == {"input_tokens": len(engine.last.prompt)}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"colour": 1}, "colour"),
    ],
)
def test_errors_have_anthropics_shape_and_name_the_field(
    tool_http: httpx.Client, body: dict[str, Any], field: str
) -> None:
    response = tool_http.post(PATH, json={"max_tokens": 100, "messages": HELLO, **body})
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert field in error["error"]["message"]


def test_every_failure_under_this_path_has_anthropics_shape(tool_http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(refuse(pb.OVERLOADED, "the queue is full"), refuse(pb.FAILED, "broken"))
    cases = [
        (tool_http.post(PATH, content=b"{"), 400, "invalid_request_error"),
        (tool_http.get(PATH), 405, "invalid_request_error"),
        (tool_http.post(f"{PATH}/nothing"), 404, "not_found_error"),
        (tool_http.post(PATH, json={"model": "x", "max_tokens": 1, "messages": HELLO}), 404, "not_found_error"),
        (tool_http.post(PATH, json={"max_tokens": 1, "messages": HELLO}), 429, "rate_limit_error"),
        (tool_http.post(PATH, json={"max_tokens": 1, "messages": HELLO}), 500, "api_error"),
    ]
    for response, status, kind in cases:
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


def test_a_failure_midway_is_an_error_event(tool_http: httpx.Client, engine: ScriptedEngine) -> None:
    def fails(run: Run) -> None:
        run.send(70)
        run.finish(pb.FAILED, error="out of memory")

    engine.next(fails)
    last = events_of(tool_http)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
