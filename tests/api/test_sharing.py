"""What clients say about who shares their prompts, and about the conversation that they are part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from chorus.security.key_rules import key_hash
from chorus.serving.requests.sharing import conversation_of, scope_of
from tests.api.conftest import ApiProcess
from tests.api.recorded_clients import (
    CLAUDE_CODE,
    CLAUDE_CODE_HEADERS,
    OPENCODE_HEADERS,
)
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say

HELLO = {"role": "user", "content": "hello"}
CHAT = ("/v1/chat/completions", {"messages": [HELLO]})
TEXT = ("/v1/completions", {"prompt": "hello"})
ITEMS = ("/v1/responses", {"input": "hello"})
MESSAGES = ("/v1/messages", {"messages": [HELLO], "max_tokens": 5})


def ask(http: httpx.Client, engine: ScriptedEngine, path: str, body: dict[str, Any], **headers: str) -> Any:
    engine.next(say([7]))
    response = http.post(path, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response.raise_for_status()
    return engine.last


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT, ITEMS, MESSAGES])
def test_every_protocol_has_salts_and_conversations(
    http: httpx.Client, engine: ScriptedEngine, path: str, body: dict[str, Any]
) -> None:
    sent = ask(http, engine, path, body)
    assert (sent.scope, sent.conversation, sent.pinned) == ("", "", False)
    sent = ask(http, engine, path, {**body, "cache_salt": "s", "conversation_id": "c"})
    assert (sent.scope, sent.conversation) == (scope_of("s", ""), conversation_of("c", ""))
    for salt in ("", "x" * 1025):
        refused = http.post(path, json={**body, "cache_salt": salt})
        assert refused.status_code == 400
        assert "cache_salt" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "headers", "name"),
    [
        ({"prompt_cache_key": "k"}, {}, "k"),
        ({"prompt_cache_key": "k", "conversation_id": "c"}, {}, "c"),
        ({"prompt_cache_key": "k"}, OPENCODE_HEADERS, "k"),
        ({}, OPENCODE_HEADERS, "ses_0"),
        ({}, CLAUDE_CODE_HEADERS, "00000000-0000-0000-0000-000000000000"),
    ],
)
def test_what_names_a_conversation(
    http: httpx.Client, engine: ScriptedEngine, fields: dict[str, str], headers: dict[str, str], name: str
) -> None:
    sent = ask(http, engine, CHAT[0], {**CHAT[1], **fields}, **headers)
    assert sent.conversation == conversation_of(name, "")


def test_a_session_of_any_length_is_refused_by_its_header(http: httpx.Client) -> None:
    refused = http.post(CHAT[0], json=CHAT[1], headers={"X-Session-Affinity": "x" * 1025})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-session-affinity"


def test_marks_of_claude_code_pin_its_prompt(tool_http: httpx.Client, engine: ScriptedEngine) -> None:
    assert ask(tool_http, engine, "/v1/messages", {**CLAUDE_CODE, "stream": False}).pinned


@pytest.mark.parametrize(
    "marked",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
                        }
                    ],
                },
            ]
        },
    ],
)
def test_a_mark_pins_wherever_it_stands(http: httpx.Client, engine: ScriptedEngine, marked: dict[str, Any]) -> None:
    assert ask(http, engine, MESSAGES[0], {**MESSAGES[1], **marked}).pinned


def test_with_a_scope_for_each_key_no_two_share(start_api: Callable[..., ApiProcess], engine: ScriptedEngine) -> None:
    keys = [{"id": name, "sha256": key_hash(f"key-{name}")} for name in ("one", "two")]
    api = start_api(keys=keys, cache_per_key=True)
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as http:
        scopes = [ask(http, engine, *CHAT, authorization=f"Bearer key-{name}").scope for name in ("one", "two", "one")]
    assert scopes == [scope_of("", "one"), scope_of("", "two"), scope_of("", "one")]
