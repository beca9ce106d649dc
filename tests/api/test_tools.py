"""Tools: offered to the model, called by it, forced by grammar, streamed as they form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from llguidance import LLTokenizer

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import ApiProcess, settings_for
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import ScriptedEngine, say, say_until_cancelled
from tests.support.tiny_tokenizer import write_tiny_tokenizer

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


WEATHER = tool("weather", city={"enum": ["Paris", "Rome"]})
CLOCK = tool("clock", zone={"type": "integer"})
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "clock", "arguments": {"zone": 1}}\n</tool_call>'


def ask(http: httpx.Client, **options: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={"messages": QUESTION, "tools": [WEATHER, CLOCK], **options})
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


def deltas(http: httpx.Client, **options: Any) -> list[dict[str, Any]]:
    body = {"messages": QUESTION, "tools": [WEATHER, CLOCK], "stream": True, **options}
    response = http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [json.loads(event)["choices"][0] for event in events[:-1]]


def test_tools_are_shown_to_the_template(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say([70]), say([70]))
    ask(tool_http)
    assert '"weather"' in tokenizer.decode(engine.last.prompt)
    ask(tool_http, tool_choice="none")
    assert "weather" not in tokenizer.decode(engine.last.prompt).replace("the weather in", "")


def test_calls_in_one_body(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say(tokenizer.encode("Let me see. " + CALL + SECOND, special=False)))
    choice = ask(tool_http)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert (first["function"]["name"], json.loads(first["function"]["arguments"])) == ("weather", {"city": "Paris"})
    assert (second["function"]["name"], json.loads(second["function"]["arguments"])) == ("clock", {"zone": 1})
    assert first["id"] != second["id"]
    assert first["type"] == "function"
    assert not engine.last.HasField("grammar")


def test_a_call_without_other_text_has_no_content(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokenizer.encode(CALL, special=False)))
    assert ask(tool_http)["message"]["content"] is None


def test_calls_are_streamed_as_they_form(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say(tokenizer.encode(CALL + SECOND, special=False)))
    choices = deltas(tool_http)
    calls: dict[int, dict[str, Any]] = {}
    pieces = 0
    for choice in choices:
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls[call["index"]] = {"name": call["function"]["name"], "arguments": ""}
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
            pieces += 1
    assert calls[0] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert calls[1] == {"name": "clock", "arguments": '{"zone": 1}'}
    assert pieces > 6
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_text_that_looks_like_a_call_stays_text_where_there_are_no_tools(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokenizer.encode(CALL, special=False)))
    choice = ask(tool_http, tools=None)
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


def test_one_call_at_a_time_ends_the_answer_before_the_second(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say_until_cancelled(tokenizer.encode(CALL + SECOND, special=False)))
    choice = ask(tool_http, parallel_tool_calls=False)
    engine.wait_for_run().wait_cancelled()
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "clock"}), ({"type": "function", "function": {"name": "clock"}}, {"clock"})],
)
def test_a_forced_call_is_made_by_grammar(
    tool_http: httpx.Client,
    engine: ScriptedEngine,
    grammar_tokens: LLTokenizer,
    choice: Any,
    names: set[str],
    stream: bool,
) -> None:
    engine.default = obey(grammar_tokens)
    for seed in range(5):
        options = {"tool_choice": choice, "parallel_tool_calls": False, "seed": seed, "max_tokens": 500}
        if stream:
            parts = [call for part in deltas(tool_http, **options) for call in part["delta"].get("tool_calls", ())]
            name = parts[0]["function"]["name"]
            arguments = json.loads("".join(part["function"]["arguments"] for part in parts))
        else:
            answer = ask(tool_http, **options)
            assert answer["finish_reason"] == "tool_calls"
            (call,) = answer["message"]["tool_calls"]
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        assert name in names
        assert set(arguments) == ({"city"} if name == "weather" else {"zone"})
    assert engine.last.HasField("grammar")


def test_tools_and_a_schema_together_allow_a_call_or_a_document(
    tool_http: httpx.Client, engine: ScriptedEngine, grammar_tokens: LLTokenizer
) -> None:
    engine.default = obey(grammar_tokens)
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}}}
    kinds = set()
    for seed in range(12):
        choice = ask(tool_http, response_format=form, seed=seed, max_tokens=1000, temperature=0)
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"x"}
    assert kinds <= {"stop", "tool_calls"}
    assert engine.last.grammar.parts


def test_earlier_calls_and_results_reach_the_template_as_objects(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say([70]))
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}]
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "reasoning_content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    ask(tool_http, messages=messages)
    prompt = tokenizer.decode(engine.last.prompt)
    assert '<think>\nLet me look.\n</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}' in prompt
    assert "tool\nsunny" in prompt


def test_a_tool_whose_schema_cannot_be_enforced_is_named_when_it_is_forced(tool_http: httpx.Client) -> None:
    broken = tool("broken", x={"type": "blob"})
    body = {"messages": QUESTION, "tools": [WEATHER, broken], "tool_choice": "required"}
    response = tool_http.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1]"


def test_a_model_that_cannot_call_says_so(http: httpx.Client) -> None:
    response = http.post(CHAT, json={"messages": QUESTION, "tools": [CLOCK], "tool_choice": "required"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_model_whose_template_knows_no_tools_is_told_of_them_in_the_system_message(
    engine: ScriptedEngine, tmp_path: Path, tokenizer: Tokenizer, grammar_tokens: LLTokenizer
) -> None:
    write_tiny_tokenizer(tmp_path / "model", 512)
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": PLAIN_TEMPLATE}))
    engine.description.context_length = 4000
    api = ApiProcess(tmp_path, settings_for(engine, tmp_path / "model"))
    try:
        api.wait_until_live()
        engine.next(obey(grammar_tokens), say(tokenizer.encode("Sunny.", special=False)))
        with httpx.Client(base_url=api.url, timeout=120) as http:
            messages = [{"role": "system", "content": "Be brief."}, *QUESTION]
            forced = ask(http, messages=messages, tool_choice="required", parallel_tool_calls=False)
            (call,) = forced["message"]["tool_calls"]
            prompt = tokenizer.decode(engine.last.prompt)
            assert prompt.startswith("system\nBe brief.\n\nYou can call these functions:\n")
            assert '{"name": "weather", ' in prompt
            history = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "sun"},
            ]
            assert ask(http, messages=history)["message"]["content"] == "Sunny."
            prompt = tokenizer.decode(engine.last.prompt)
            assert "user\n<tool_response>\nsun\n</tool_response>" in prompt
            assert f'<tool_call>\n{{"name": "{call["function"]["name"]}", "arguments": ' in prompt
    finally:
        api.stop()
        engine.description.context_length = 256
