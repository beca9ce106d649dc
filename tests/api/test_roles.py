"""Templates that know fewer orders of roles than clients send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.serving.prompt.roles import orders
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import VOCABULARY, ApiProcess, settings_for
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say
from tests.support.tiny_tokenizer import write_tiny_tokenizer

# Users and assistants in turn and nothing else, as some families have it.
STRICT_TEMPLATE = """\
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) or message.role == 'system' %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_the_order_that_was_sent_comes_first() -> None:
    messages = [said("system", "a"), said("user", "b"), said("system", "c")]
    assert next(orders(messages)) == messages


def test_later_instructions_join_the_users_words_before_the_first_ones_do() -> None:
    messages = [said("system", "a"), said("user", "b"), said("system", "c"), said("assistant", "d"), said("user", "e")]
    _, later, every = orders(messages)
    assert later == [said("system", "a"), said("user", "b\n\nc"), said("assistant", "d"), said("user", "e")]
    assert every == [said("user", "a\n\nb\n\nc"), said("assistant", "d"), said("user", "e")]


def test_several_leading_instructions_become_one() -> None:
    _, joined, _ = orders([said("system", "a"), said("system", "b"), said("user", "c")])
    assert joined == [said("system", "a\n\nb"), said("user", "c")]


def test_answers_and_results_are_never_joined() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    messages = [said("user", "a"), said("assistant", "b"), said("assistant", "c"), result, result]
    assert list(orders(messages)) == [messages]


@pytest.fixture
def strict_http(engine: ScriptedEngine, tmp_path: Path) -> Iterator[httpx.Client]:
    write_tiny_tokenizer(tmp_path, VOCABULARY)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": STRICT_TEMPLATE}))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"], "model_type": "x"}))
    api = ApiProcess(tmp_path, settings_for(engine, tmp_path))
    try:
        api.wait_until_live()
        with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
            yield client
    finally:
        api.stop()


def test_a_strict_template_serves_an_agents_conversation(
    strict_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokenizer.encode("Yes.", special=False)))
    messages = [said("system", "Be brief."), said("user", "One."), said("system", "Be kind."), said("user", "Two.")]
    answer = strict_http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    assert tokenizer.decode(engine.last.prompt).startswith("user\nBe brief.\n\nOne.\n\nBe kind.\n\nTwo.")


def test_what_a_template_refuses_in_every_order_is_the_clients_error(strict_http: httpx.Client) -> None:
    messages = [said("user", "One."), said("assistant", "a"), said("assistant", "b"), said("user", "Two.")]
    answer = strict_http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]
