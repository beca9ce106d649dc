"""Other people's programs are answered in the shapes that they know."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID
from tests.api.recorded_clients import (
    CLAUDE_CODE,
    CLAUDE_CODE_HEADERS,
    CLAUDE_CODE_RESULT,
    CLINE,
    CLINE_HEADERS,
    EPHEMERAL,
    OPEN_WEBUI_ADJUSTED,
    OPENCODE,
    OPENCODE_HEADERS,
    OPENCODE_TITLE,
)
from tests.api.scripted_engine import ScriptedEngine, say

READ_CALL = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/w/note.txt"}}\n</tool_call>'


def says(tokenizer: Tokenizer, text: str) -> Any:
    return say(tokenizer.encode(text, special=False))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_claude_code_asks_whether_somebody_is_there(tool_http: httpx.Client) -> None:
    response = tool_http.head("/")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0
    assert tool_http.head("/v1/messages").status_code == 405


def test_claude_code_is_given_a_thought_a_text_and_a_call(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, f"I must look.</think>I read it.\n{READ_CALL}"))
    sent = events(tool_http.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=CLAUDE_CODE_HEADERS))
    opened = [event["content_block"]["type"] for event in sent if event["type"] == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use"]
    pieces = [event["delta"]["partial_json"] for event in sent if event.get("delta", {}).get("type", "")[:5] == "input"]
    assert json.loads("".join(pieces)) == {"file_path": "/w/note.txt"}
    assert [event["type"] for event in sent[-2:]] == ["message_delta", "message_stop"]
    assert sent[-2]["delta"]["stop_reason"] == "tool_use"


def test_claude_codes_instructions_reach_the_model_wherever_they_stand(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "</think>Good."))
    events(tool_http.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=CLAUDE_CODE_HEADERS))
    prompt = tokenizer.decode(engine.last.prompt)
    for text in ("You are an agent.", "You help with software.", "It is Sunday.", "- init: begin", '"TaskList"'):
        assert text in prompt


def test_claude_code_sends_the_result_of_a_call(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Easy.</think>It says plum."))
    body = {**CLAUDE_CODE, "messages": [*CLAUDE_CODE["messages"], *CLAUDE_CODE_RESULT]}
    sent = events(tool_http.post("/v1/messages?beta=true", json=body, headers=CLAUDE_CODE_HEADERS))
    assert "".join(event["delta"].get("text", "") for event in sent if "delta" in event) == "It says plum."
    assert "tool\n1\tplum" in tokenizer.decode(engine.last.prompt)


def test_claude_code_is_told_of_a_full_context_in_the_words_that_it_knows(tool_http: httpx.Client) -> None:
    """It reads both figures, then shortens the conversation by itself."""
    long = {**CLAUDE_CODE, "messages": [{"role": "user", "content": "word " * 5000}]}
    response = tool_http.post("/v1/messages?beta=true", json=long, headers=CLAUDE_CODE_HEADERS)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", message)
    assert found, message
    assert int(found[1]) > int(found[2]) == 4000


AI_SDK = pytest.mark.parametrize(
    ("body", "headers"), [(OPENCODE, OPENCODE_HEADERS), (CLINE, CLINE_HEADERS)], ids=["opencode", "cline"]
)


@AI_SDK
def test_a_call_is_streamed_to(
    tool_http: httpx.Client,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    body: dict[str, Any],
    headers: dict[str, str],
) -> None:
    engine.next(says(tokenizer, f"I read it.\n{READ_CALL}"))
    sent = events(tool_http.post("/v1/chat/completions", json=body, headers=headers))
    choices = [choice for event in sent for choice in event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices).strip() == "I read it."
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    # The library takes the first piece of a call for its beginning, and asks it for the id and the name.
    assert (pieces[0]["type"], pieces[0]["function"]["name"]) == ("function", "Read")
    assert pieces[0]["id"]
    assert {piece["index"] for piece in pieces} == {0}
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(arguments) == {"file_path": "/w/note.txt"}
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert sent[-1]["choices"] == []
    assert sent[-1]["usage"]["completion_tokens"] > 0


@AI_SDK
def test_the_result_of_a_call_is_taken_from(
    tool_http: httpx.Client,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    body: dict[str, Any],
    headers: dict[str, str],
) -> None:
    engine.next(says(tokenizer, "It says plum."))
    function = {"name": "Read", "arguments": '{"file_path":"/w/note.txt"}'}
    turn = [
        {
            "role": "assistant",
            "content": "I read it.\n",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "<content>\n1: plum\n</content>"},
    ]
    response = tool_http.post(
        "/v1/chat/completions", json={**body, "messages": [*body["messages"], *turn]}, headers=headers
    )
    texts = [choice["delta"].get("content") or "" for event in events(response) for choice in event["choices"]]
    assert "".join(texts) == "It says plum."
    assert "1: plum" in tokenizer.decode(engine.last.prompt)


def test_opencode_is_given_a_title(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Reading a note"))
    sent = events(tool_http.post("/v1/chat/completions", json=OPENCODE_TITLE, headers=OPENCODE_HEADERS))
    assert "".join(choice["delta"].get("content") or "" for e in sent for choice in e["choices"]) == "Reading a note"


def test_opencode_is_told_of_a_full_context_by_the_code_that_it_knows(tool_http: httpx.Client) -> None:
    """It then shortens the conversation by itself."""
    response = tool_http.post("/v1/chat/completions", json={**OPENCODE, "max_tokens": 8192}, headers=OPENCODE_HEADERS)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_open_webui_finds_the_model_by_its_id(tool_http: httpx.Client) -> None:
    listed = tool_http.get("/v1/models", headers={"authorization": "Bearer none"}).json()
    assert [entry["id"] for entry in listed["data"]] == [MODEL_ID]


def test_open_webuis_page_offers_its_own_tools(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Paris."))
    weeks = {"default": 0, "description": "How many", "type": "integer"}
    functions: list[dict[str, Any]] = [
        {"name": "get_current_timestamp", "description": "Now", "parameters": {"properties": {}, "type": "object"}},
        {
            "name": "calculate_timestamp",
            "description": "Then.\nOr now.",
            "parameters": {"properties": {"weeks_ago": weeks}, "type": "object"},
        },
    ]
    body = {
        "stream": True,
        "model": MODEL_ID,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "tools": [{"type": "function", "function": function} for function in functions],
    }
    sent = events(tool_http.post("/v1/chat/completions", json=body))
    assert "".join(choice["delta"].get("content") or "" for e in sent for choice in e["choices"]) == "Paris."
    assert "calculate_timestamp" in tokenizer.decode(engine.last.prompt)


def test_open_webui_streams_with_every_setting_of_a_chat(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Rome."))
    sent = events(tool_http.post("/v1/chat/completions", json=OPEN_WEBUI_ADJUSTED))
    assert "".join(choice["delta"].get("content") or "" for e in sent for choice in e["choices"]) == "Rome."
    assert engine.last.max_tokens == 12


def test_open_webui_asks_for_a_title(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, '{"title": "Capitals"}'))
    body = {
        "model": MODEL_ID,
        "messages": [{"role": "user", "content": "### Task:\nWrite a title."}],
        "stream": False,
        "max_tokens": 1000,
    }
    answer = tool_http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == '{"title": "Capitals"}'


@pytest.mark.parametrize("setting", ["repeat_penalty", "num_ctx"])
def test_open_webui_is_told_which_of_its_settings_are_ollamas_own(tool_http: httpx.Client, setting: str) -> None:
    response = tool_http.post("/v1/chat/completions", json={**OPEN_WEBUI_ADJUSTED, setting: 2048})
    assert response.status_code == 400
    assert setting in response.json()["error"]["message"]


# Arguments as no client sends them back: with spaces, with a point, in this order.
ODD_CALL = '<tool_call>\n{"name": "Read", "arguments": {"offset":  5000.0, "file_path":"/w/note.txt"}}\n</tool_call>'


def test_claude_codes_answer_comes_back_as_the_tokens_that_the_model_wrote(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    # One by one: no text that is encoded anew becomes these.
    drawn = [token for letter in f"I must look.</think>I read it. \n{ODD_CALL}" for token in encoded(tokenizer, letter)]
    engine.next(say(drawn), says(tokenizer, "</think>It says plum."))
    asked = {name: value for name, value in CLAUDE_CODE.items() if name not in ("output_config", "stream")}
    blocks = tool_http.post("/v1/messages", json=asked, headers=CLAUDE_CODE_HEADERS).json()["content"]
    thought, text, call = blocks
    back = [
        thought,
        {"type": "text", "text": ""},
        {**text, "text": text["text"].strip()},
        {**call, "input": {"file_path": "/w/note.txt", "offset": 5000}},
    ]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "1\tplum", "cache_control": EPHEMERAL}
    turn = [{"role": "assistant", "content": back}, {"role": "user", "content": [result]}]
    grown = {**asked, "messages": [*asked["messages"], *turn]}
    tool_http.post("/v1/messages", json=grown, headers=CLAUDE_CODE_HEADERS).raise_for_status()
    assert_goes_on(engine, drawn, tokenizer)
    counted = tool_http.post("/v1/messages/count_tokens", json={"messages": grown["messages"], "tools": asked["tools"]})
    assert counted.status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_opencodes_call_comes_back_as_the_tokens_that_the_model_wrote(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    drawn = encoded(tokenizer, f"I read it.\n{ODD_CALL}")
    engine.next(say(drawn), says(tokenizer, "It says plum."))
    asked = OPENCODE if stream else {**CLINE, "stream": False, "stream_options": None}
    response = tool_http.post("/v1/chat/completions", json=asked, headers=OPENCODE_HEADERS)
    if stream:
        call_id = next(
            call["id"]
            for event in events(response)
            for choice in event["choices"]
            for call in choice["delta"].get("tool_calls", ())
        )
    else:
        call_id = response.json()["choices"][0]["message"]["tool_calls"][0]["id"]
    function = {"name": "Read", "arguments": '{"file_path":"/w/note.txt","offset":5000}'}
    turn = [
        {
            "role": "assistant",
            "content": "I read it.",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "1: plum"},
    ]
    grown = {**asked, "messages": [*asked["messages"], *turn]}
    tool_http.post("/v1/chat/completions", json=grown, headers=OPENCODE_HEADERS).raise_for_status()
    assert_goes_on(engine, drawn, tokenizer)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False)


def assert_goes_on(engine: ScriptedEngine, drawn: list[int], tokenizer: Tokenizer) -> None:
    """The last request begins with the one before it, its answer and the token that ended it."""
    before, last = (list(run.submit.prompt) for run in engine.runs[-2:])
    known = [*before, *drawn, *encoded(tokenizer, "<|im_end|>")]
    assert last[: len(known)] == known
    assert "plum" in tokenizer.decode(last[len(known) :])
