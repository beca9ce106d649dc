"""Bodies as users of mlx-lm's server send them: they are answered here as there, or refused by name with what to do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from chorus.text.tokenizer import Tokenizer
from tests.api.recorded_clients import MODEL_ID
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say

HELLO = [{"role": "user", "content": "Say this is a test!"}]
FIRST = {"messages": HELLO, "temperature": 0.7}
"""The example of mlx-lm's SERVER.md."""

ALL_TOKENS = 2**31 - 1

DEFAULTS = {
    "stream": False,
    "model": "default_model",
    "draft_model": "default_model",
    "num_draft_tokens": 3,
    "adapters": None,
    "max_tokens": 100,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 0.0,
    "repetition_context_size": 20,
    "presence_penalty": 0.0,
    "presence_context_size": 20,
    "frequency_penalty": 0.0,
    "frequency_context_size": 20,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "logit_bias": None,
    "logprobs": False,
    "top_logprobs": -1,
    "seed": None,
    "stop": None,
    "stream_options": None,
    "chat_template_kwargs": None,
}
"""Every field that its server reads, as it fills in those that are missing."""


def answered(http: httpx.Client, engine: ScriptedEngine, body: dict[str, Any], path: str = "/chat/completions") -> Any:
    engine.next(say([70, 71]))
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("version", ["", "/v1"])
def test_paths_answer_without_their_version_too(http: httpx.Client, engine: ScriptedEngine, version: str) -> None:
    assert answered(http, engine, FIRST, f"{version}/chat/completions")["object"] == "chat.completion"
    assert answered(http, engine, {"prompt": "Once"}, f"{version}/completions")["object"] == "text_completion"
    assert [entry["id"] for entry in http.get(f"{version}/models").json()["data"]] == [MODEL_ID]
    assert http.get(f"{version}/models/{MODEL_ID}").json()["id"] == MODEL_ID
    assert http.get(f"{version}/models/nobody/knows").status_code == 404


def test_a_path_without_its_version_streams_and_refuses_as_the_other_does(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.next(say([70]))
    streamed = http.post("/chat/completions", json={**FIRST, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    refused = http.post("/chat/completions", json={**FIRST, "colour": "red"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "colour")


def test_a_key_is_asked_for_without_the_version_too(start_api: Any) -> None:
    api = start_api(keys=[{"id": "a", "name": "a", "sha256": "0" * 64}])
    assert httpx.post(f"{api.url}/chat/completions", json=FIRST, timeout=DEADLINE).status_code == 401
    assert httpx.get(f"{api.url}/models", timeout=DEADLINE).status_code == 401


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Once"})]
)
def test_every_default_of_its_server_may_be_said_and_changes_nothing(
    http: httpx.Client, engine: ScriptedEngine, path: str, asked: dict[str, Any]
) -> None:
    known = {key: value for key, value in DEFAULTS.items() if path.endswith("chat/completions") or key != TEMPLATE}
    answer = answered(http, engine, {**asked, **known}, path)
    assert answer["choices"][0]["logprobs"] is None
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert engine.last.max_tokens == 100


TEMPLATE = "chat_template_kwargs"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"repetition_penalty": 0.0}, {"repetition_penalty": 1.0}),
        ({"repetition_penalty": 1.5, "repetition_context_size": 5}, {"repetition_context": 5}),
        ({"repetition_penalty": 1.5, "repetition_context_size": 0}, {"repetition_context": ALL_TOKENS}),
        ({"repetition_penalty": 1.5}, {"repetition_context": 20}),
        ({"presence_penalty": 1.0, "presence_context_size": 20}, {"presence_context": 20, "frequency_context": 0}),
        ({"frequency_penalty": 1.0, "frequency_context_size": 64}, {"frequency_context": 64, "presence_context": 0}),
        ({"frequency_penalty": 1.0, "frequency_context_size": 0}, {"frequency_context": ALL_TOKENS}),
        ({"temperature": 0.5, "top_p": 0}, {"temperature": 0.5, "top_p": 1.0}),
        ({"top_p": 0}, {"temperature": 0.0}),
        ({"xtc_probability": 0.5}, {"xtc_probability": 0.5, "xtc_threshold": pytest.approx(0.1)}),
        ({"logit_bias": {"5": 1.5, "7": -2}}, {"logit_bias": {5: 1.5, 7: -2.0}}),
        ({"top_k": 40, "min_p": 0.25}, {"top_k": 40, "min_p": 0.25}),
    ],
    ids=str,
)
def test_what_changes_an_answer_there_changes_it_here(
    http: httpx.Client, engine: ScriptedEngine, said: dict[str, Any], expected: dict[str, Any]
) -> None:
    answered(http, engine, {"messages": HELLO, **said})
    sampling = engine.last.sampling
    assert {name: getattr(sampling, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Once"})]
)
@pytest.mark.parametrize(
    ("said", "candidates"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": -1}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"top_logprobs": 3}, 3),
        ({"logprobs": 4}, 4),
        ({"logprobs": 0}, 0),
        ({"logprobs": False, "top_logprobs": -1}, None),
        ({"logprobs": -1}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": None}, None),
    ],
    ids=str,
)
def test_log_probabilities_are_asked_for_by_a_flag_or_a_number(
    http: httpx.Client,
    engine: ScriptedEngine,
    path: str,
    asked: dict[str, Any],
    said: dict[str, Any],
    candidates: int | None,
) -> None:
    answer = answered(http, engine, {**asked, **said}, path)
    shown = answer["choices"][0]["logprobs"]
    assert (shown is not None, engine.last.logprobs) == (candidates is not None, candidates is not None)
    assert engine.last.top_logprobs == (candidates or 0)


@pytest.mark.parametrize(
    "body",
    [
        {"enable_thinking": True},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
    ],
    ids=str,
)
def test_thinking_is_turned_on_by_the_templates_own_argument_bare_or_not(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, body: dict[str, Any]
) -> None:
    answered(tool_http, engine, {"messages": HELLO, **body})
    assert tokenizer.decode(engine.last.prompt).endswith("<think>\n")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_an_answer_goes_back_with_its_reasoning_under_either_name(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, name: str
) -> None:
    earlier = {"role": "assistant", "content": "It is.", name: "A test, they say."}
    answered(tool_http, engine, {"messages": [*HELLO, earlier, *HELLO]})
    assert "<think>\nA test, they say.\n</think>\nIt is." in tokenizer.decode(engine.last.prompt)


def test_both_names_of_reasoning_may_say_the_same_and_no_two_things(
    tool_http: httpx.Client, engine: ScriptedEngine
) -> None:
    earlier = {"role": "assistant", "content": "It is.", "reasoning": "One.", "reasoning_content": "One."}
    answered(tool_http, engine, {"messages": [*HELLO, earlier, *HELLO]})
    messages = [*HELLO, {**earlier, "reasoning": "Two."}, *HELLO]
    error = tool_http.post("/chat/completions", json={"messages": messages}).json()["error"]
    assert error["param"] == "messages[1].reasoning"


def test_a_role_mapping_is_used_and_an_empty_one_leaves_the_template(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mapping = {"system": "ASSISTANT's RULE: ", "user": "USER: ", "assistant": "ASSISTANT: ", "stop": "\n"}
    answered(http, engine, {"messages": HELLO, "role_mapping": mapping})
    assert tokenizer.decode(engine.last.prompt) == "USER: Say this is a test!\nASSISTANT:"
    answered(http, engine, {"messages": HELLO})
    by_template = list(engine.last.prompt)
    answered(http, engine, {"messages": HELLO, "role_mapping": {}})
    assert list(engine.last.prompt) == by_template


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("adapters", "path/to/adapters", "mlx_lm.fuse"),
        ("draft_model", "mlx-community/Qwen3-0.6B-4bit", "no draft model is used; leave it out"),
        ("max_tokens", 0, "expected 1 or more; leave it out for an answer as long as the context allows"),
        ("max_tokens", -1, "leave it out for an answer as long as the context allows"),
        ("max_completion_tokens", 0, "leave it out for an answer as long as the context allows"),
        ("num_draft_tokens", -1, "greater than or equal to 0"),
        ("presence_context_size", -1, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name_with_what_to_do(
    http: httpx.Client, engine: ScriptedEngine, field: str, value: Any, told: str
) -> None:
    response = http.post("/chat/completions", json={**FIRST, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] in (field, field.removesuffix("_size"))
    assert told in error["message"]
    assert engine.runs == []
