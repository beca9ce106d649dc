"""A family of tool calls of one's own: its parser and its place in the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.text.tokenizer import Tokenizer
from tests.api.grammar_engine import grammar_tokenizer, obey
from tests.api.scripted_engine import ScriptedEngine, say
from tests.api.test_tools import CHAT, QUESTION, WEATHER
from tests.examples.front_end import front_end
from tests.examples.support import changed_files

TEMPLATE = """\
{%- for tool in tools or [] %}Call it as <function={{ tool.function.name }}>{...}</function>
{% endfor %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant: """


def test_it_touches_two_files() -> None:
    assert len(changed_files("tool_family")) == 2


def answer_of(http: httpx.Client, **options: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={"messages": QUESTION, "tools": [WEATHER], **options})
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[httpx.Client, ScriptedEngine, Path]]:
    with front_end("tool_family", tmp_path, TEMPLATE) as (http, engine):
        yield http, engine, tmp_path


def test_a_model_whose_template_shows_it_calls_tools_in_it(served: tuple[httpx.Client, ScriptedEngine, Path]) -> None:
    http, engine, model = served
    said = 'Let me see.<function=weather>{"city": "Paris"}</function>'
    engine.next(say(Tokenizer.load(model).encode(said, special=False)))
    answer = answer_of(http)
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == "Let me see."
    (call,) = answer["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {"city": "Paris"})


def test_a_call_in_it_can_be_forced(served: tuple[httpx.Client, ScriptedEngine, Path]) -> None:
    http, engine, model = served
    engine.next(obey(grammar_tokenizer(str(model))))
    answer = answer_of(http, tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    (call,) = answer["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
