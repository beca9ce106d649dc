"""Whatever a client sends, it gets a 4xx in OpenAI's shape that names the field, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import ApiProcess, open_requests
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, refuse, say

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def check_error(response: httpx.Response, status: int, param: str | None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert param is None or param in error["message"]
    assert error["message"].endswith((".", "!"))
    assert response.headers["x-request-id"]
    return dict(error)


@pytest.fixture(autouse=True)
def _server_stays_unharmed(http: httpx.Client, engine: ScriptedEngine) -> Iterator[None]:
    yield
    engine.next(say([70]))
    assert http.post(CHAT, json={"messages": HELLO}).status_code == 200
    assert open_requests(http) == 0


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"not json", "invalid_json"),
        (b'{"messages": ', "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid_utf8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_json"),
        (b'{"messages": ' + b"[" * 1000, "limit_exceeded"),
        (b"[]", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"null", "invalid_type"),
    ],
)
def test_a_body_that_is_no_json_object(http: httpx.Client, raw: bytes, code: str) -> None:
    error = check_error(http.post(CHAT, content=raw, headers={"content-type": "application/json"}), 400, None)
    assert error["code"] == code


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("messages", [], "messages"),
        ("messages", "hello", "messages"),
        ("messages", None, "messages"),
        ("messages", ["hello"], "messages[0]"),
        ("messages", [{"content": "hello"}], "messages[0].role"),
        ("messages", [{"role": "robot", "content": "hello"}], "messages[0].role"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("messages", [*HELLO, {"role": "user", "content": "x", "colour": 1}], "messages[1].colour"),
        ("messages", [{"role": "assistant", "content": None}], "messages[0].content"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", "5", "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", 10**30, "max_tokens"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("temperature", 9, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", -0.1, "top_p"),
        ("top_p", 1.1, "top_p"),
        ("top_k", -2, "top_k"),
        ("min_p", 2, "min_p"),
        ("presence_penalty", 3, "presence_penalty"),
        ("frequency_penalty", -3, "frequency_penalty"),
        ("repetition_penalty", -1, "repetition_penalty"),
        ("logit_bias", {"5": 101}, "logit_bias.5"),
        ("logit_bias", {"x": 1}, "logit_bias.x"),
        ("logit_bias", {"512": 1}, "logit_bias"),
        ("logit_bias", [1], "logit_bias"),
        ("seed", "lucky", "seed"),
        ("seed", 2**64, "seed"),
        ("stop", ["stop"] * 100, "stop"),
        ("stop", ["fine", ""], "stop[1]"),
        ("stop", ["fine", 7], "stop[1]"),
        ("stop", {"a": 1}, "stop"),
        ("stream", "yes", "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("model", 7, "model"),
        ("n", 65, "n"),
        ("n", 0, "n"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
        ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 2, "tools[1]"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", "sometimes", "tool_choice"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, "tool_choice"),
        ("response_format", {"type": "xml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "blob"}}},
            "response_format",
        ),
        ("guided_regex", "(a", "guided_regex"),
        ("guided_json", "{", "guided_json"),
        ("guided_choice", [], "guided_choice"),
        ("guided_grammar", "start: nothing", "guided_grammar"),
        ("grammar", "root ::= (", "grammar"),
        ("top_logprobs", -2, "top_logprobs"),
        ("logprobs", 21, "logprobs"),
        ("logprobs", "yes", "logprobs"),
        ("top_logprobs", 21, "top_logprobs"),
        ("xtc_probability", 2, "xtc_probability"),
        ("reasoning_effort", "huge", "reasoning_effort"),
        ("chat_template_kwargs", {"tokenize": False}, "messages"),
        ("role_mapping", {"robot": "x"}, "role_mapping.robot"),
        ("functions", [{"name": "f"}], "functions"),
        ("modalities", ["text", "audio"], "modalities"),
        ("colour", "red", "colour"),
    ],
)
def test_a_wrong_field_of_a_chat_is_named(
    http: httpx.Client, engine: ScriptedEngine, field: str, value: Any, param: str
) -> None:
    check_error(http.post(CHAT, json={"messages": HELLO, field: value}), 400, param)
    assert engine.runs == []


@pytest.mark.parametrize("name", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(http: httpx.Client, name: str) -> None:
    raw = json.dumps({"messages": HELLO})[:-1] + f', "temperature": {name}}}'
    check_error(http.post(CHAT, content=raw), 400, "temperature")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("logprobs", False),
        ("n", 1),
        ("stop", None),
        ("stop", []),
        ("stop", ""),
        ("logit_bias", {}),
        ("audio", None),
    ],
)
def test_a_field_that_asks_for_nothing_is_let_pass(
    http: httpx.Client, engine: ScriptedEngine, field: str, value: Any
) -> None:
    engine.next(say([70]))
    assert http.post(CHAT, json={"messages": HELLO, field: value}).status_code == 200


def test_an_image_for_a_text_model_is_named_by_its_place(http: httpx.Client) -> None:
    content = [{"type": "text", "text": "What is this?"}, IMAGE]
    response = http.post(CHAT, json={"messages": [*HELLO, {"role": "user", "content": content}]})
    error = check_error(response, 400, "messages[1].content[1]")
    assert "image_url" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["one", ""]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["one"] * 65}, "prompt"),
        ({"prompt": [5, 512]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": "hello", "echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": "hello", "suffix": "end"}, "suffix"),
        ({"prompt": "hello", "logprobs": 21}, "logprobs"),
        ({"prompt": "hello", "guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"prompt": "hello", "best_of": 3}, "best_of"),
        ({"prompt": "hello", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "hello", "messages": []}, "messages"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    check_error(http.post(COMPLETIONS, json=body), 400, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_not_found(http: httpx.Client, path: str) -> None:
    body = {"model": "gpt-9", "messages": HELLO} if path == CHAT else {"model": "gpt-9", "prompt": "hello"}
    error = check_error(http.post(path, json=body), 404, "model")
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_names_both_numbers(http: httpx.Client, stream: bool) -> None:
    error = check_error(http.post(COMPLETIONS, json={"prompt": [5] * 300, "stream": stream}), 400, "prompt")
    assert error["code"] == "context_length_exceeded"
    assert "300" in error["message"]
    assert "256" in error["message"]


def test_more_tokens_than_the_context_leaves_are_refused(http: httpx.Client) -> None:
    error = check_error(http.post(COMPLETIONS, json={"prompt": [5] * 250, "max_tokens": 7}), 400, "prompt")
    assert error["code"] == "context_length_exceeded"
    assert {"250", "7", "257", "256"} <= set(error["message"].replace(",", "").replace(";", "").split())


def test_the_whole_context_may_be_used(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]), say([70]))
    assert http.post(COMPLETIONS, json={"prompt": [5] * 250, "max_tokens": 6}).status_code == 200
    assert http.post(COMPLETIONS, json={"prompt": [5] * 255}).status_code == 200
    assert engine.last.max_tokens == 1


def test_a_ten_megabyte_body_is_refused(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 10_000_000}]}
    error = check_error(http.post(CHAT, json=body), 413, None)
    assert error["code"] == "body_too_large"


def test_a_chunked_body_is_counted_as_it_arrives(http: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100_000

    check_error(http.post(CHAT, content=chunks()), 413, None)


def test_a_body_that_is_only_announced_is_refused_before_it_is_sent(api: ApiProcess) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000000000\r\n\r\n"
    assert raw_exchange(api, head.encode()).startswith(b"HTTP/1.1 413")


def test_a_client_that_asks_before_sending_is_told_at_once(api: ApiProcess) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5000000\r\n\r\n"
    assert raw_exchange(api, head.encode()).startswith(b"HTTP/1.1 413")


def test_a_client_that_leaves_within_its_body_harms_nobody(api: ApiProcess) -> None:
    head = f'POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{{"messages"'
    with socket.create_connection(address_of(api)) as connection:
        connection.sendall(head.encode())


def test_a_log_line_cannot_be_forged_by_a_path(http: httpx.Client, api: ApiProcess) -> None:
    http.get("/x%0a%7b%22forged%22:true%7d")
    assert all(json.loads(line).get("forged") is None for line in api.log.read_text().splitlines())


def test_an_unknown_path_is_not_found(http: httpx.Client) -> None:
    error = check_error(http.get("/v2/nothing"), 404, None)
    assert "/v2/nothing" in error["message"]


def test_a_wrong_method_is_refused_with_the_right_one(http: httpx.Client) -> None:
    response = http.get(CHAT)
    check_error(response, 405, None)
    assert response.headers["allow"] == "POST"


def test_tool_calls_of_an_earlier_answer_are_taken(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "not json"}}]
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert http.post(CHAT, json={"messages": messages}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [
        (pb.REJECTED, 400, "request_rejected"),
        (pb.OVERLOADED, 429, "engine_overloaded"),
        (pb.FAILED, 500, "engine_failed"),
    ],
)
def test_what_the_engine_refuses_is_a_proper_status_even_for_a_stream(
    http: httpx.Client, engine: ScriptedEngine, finish: pb.Finish, status: int, code: str, stream: bool
) -> None:
    engine.next(refuse(finish, "the reason why"))
    response = http.post(CHAT, json={"messages": HELLO, "stream": stream})
    error = check_error(response, status, None)
    assert error["code"] == code
    assert error["message"] == "The reason why."
    assert ("retry-after" in response.headers) == (status == 429)


def address_of(api: ApiProcess) -> tuple[str, int]:
    host, port = api.url.removeprefix("http://").split(":")
    return host, int(port)


def raw_exchange(api: ApiProcess, request: bytes) -> bytes:
    with socket.create_connection(address_of(api), timeout=DEADLINE) as connection:
        connection.sendall(request)
        return connection.recv(65536)
