"""What a chat request may ask for besides an answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.prepare import choice_seed
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.text.tokenizer import Tokenizer
from tests.api.scripted_engine import ScriptedEngine, refuse, say, say_until_cancelled

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def served(model_path: Any) -> ServedTokenizer:
    return ServedTokenizer.load(model_path)


def chat(http: httpx.Client, **options: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={"messages": QUESTION, **options})
    assert response.status_code == 200, response.text
    return dict(response.json())


def chunks(http: httpx.Client, **options: Any) -> list[dict[str, Any]]:
    response = http.post(CHAT, json={"messages": QUESTION, "stream": True, **options})
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def words(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False)


def test_several_choices_are_as_many_requests_with_seeds_of_their_own(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.default = lambda run: say(words(tokenizer, f"seed {run.submit.sampling.seed}"))(run)
    answer = chat(http, n=3, seed=42)
    seeds = [42, choice_seed(42, 1), choice_seed(42, 2)]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [f"seed {seed}" for seed in seeds]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(seeds)) == 3
    assert sorted(run.submit.sampling.seed for run in engine.runs) == sorted(seeds)
    assert answer["usage"]["prompt_tokens"] == len(engine.last.prompt)
    assert answer["usage"]["completion_tokens"] == sum(len(words(tokenizer, f"seed {s}")) + 1 for s in seeds)


def test_several_choices_in_one_stream(http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.default = lambda run: say(words(tokenizer, f"seed {run.submit.sampling.seed}"))(run)
    *events, usage = chunks(http, n=2, seed=7, stream_options={"include_usage": True})
    texts, finishes = ["", ""], [0, 0]
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        finishes[choice["index"]] += choice["finish_reason"] == "stop"
    assert texts == ["seed 7", f"seed {choice_seed(7, 1)}"]
    assert finishes == [1, 1]
    assert usage["usage"]["completion_tokens"] == sum(len(words(tokenizer, text)) + 1 for text in texts)


def test_one_choice_that_fails_takes_the_others_with_it(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say_until_cancelled([]), refuse(pb.OVERLOADED, "the queue is full"))
    response = http.post(CHAT, json={"messages": QUESTION, "n": 2})
    assert response.status_code == 429
    engine.wait_for_run(0).wait_cancelled()


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_name_the_tokens_and_their_bytes(
    http: httpx.Client, engine: ScriptedEngine, served: ServedTokenizer, stream: bool
) -> None:
    tokens = words(served, "Paris 😀!")
    engine.next(say(tokens))
    if stream:
        entries = []
        for chunk in chunks(http, logprobs=True, top_logprobs=2):
            entries += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    else:
        entries = chat(http, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert (engine.last.logprobs, engine.last.top_logprobs) == (True, 2)
    assert [bytes(entry["bytes"]) for entry in entries] == [served.token_bytes(token) for token in tokens]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "Paris 😀!"
    for token, entry in zip(tokens, entries, strict=True):
        assert entry["logprob"] == -0.5
        best, second = entry["top_logprobs"]
        assert (best["token"], best["logprob"]) == (entry["token"], -0.5)
        assert (bytes(second["bytes"]), second["logprob"]) == (served.token_bytes(token + 1), -1.5)


def test_logprobs_without_candidates(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    (entry,) = chat(http, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert entry["top_logprobs"] == []
    assert not engine.last.top_logprobs


def test_token_ids_are_returned_where_they_are_asked_for(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    tokens = words(tokenizer, "Paris 😀")
    engine.next(say(tokens), say(tokens), say(tokens))
    answer = chat(http, return_token_ids=True)
    assert answer["prompt_token_ids"] == list(engine.last.prompt)
    assert answer["choices"][0]["token_ids"] == tokens
    events = chunks(http, return_token_ids=True)
    assert events[0]["prompt_token_ids"] == list(engine.last.prompt)
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == tokens
    assert "token_ids" not in json.dumps(chat(http))


def test_the_extras_of_other_servers_reach_the_engine(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    chat(http, xtc_probability=0.5, xtc_threshold=0.25, conversation_id="chat-7")
    sampling = engine.last.sampling
    assert (sampling.xtc_probability, sampling.xtc_threshold) == (0.5, 0.25)


def test_a_role_mapping_takes_the_place_of_the_template(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say([70]))
    messages = [{"role": "system", "content": "Be brief."}, *QUESTION]
    mapping = {"system_prompt": "A chat.\n", "system": "RULE: ", "user": "USER: ", "assistant": "BOT: ", "stop": "\n"}
    chat(http, messages=messages, role_mapping=mapping)
    expected = "A chat.\nRULE: Be brief.\nUSER: What is the capital of France?\nBOT:"
    assert tokenizer.decode(engine.last.prompt) == expected


def test_effort_and_template_arguments_reach_the_template(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say([70]), say([70]))
    chat(tool_http, reasoning_effort="low", chat_template_kwargs={"enable_thinking": True})
    assert tokenizer.decode(engine.last.prompt).endswith("effort: low\nassistant\n<think>\n")
    chat(tool_http)
    assert "effort" not in tokenizer.decode(engine.last.prompt)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("opened_by_template", [False, True])
def test_reasoning_is_told_apart_from_the_answer(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool, opened_by_template: bool
) -> None:
    text = "It is a city.</think>Paris." if opened_by_template else "<think>It is a city.</think>Paris."
    engine.next(say(words(tokenizer, text)))
    options = {"chat_template_kwargs": {"enable_thinking": opened_by_template}}
    if stream:
        deltas = [event["choices"][0]["delta"] for event in chunks(tool_http, **options)]
        content = "".join(delta.get("content", "") for delta in deltas)
        reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    else:
        answer = chat(tool_http, **options)
        message = answer["choices"][0]["message"]
        content, reasoning = message["content"], message["reasoning_content"]
        details = answer["usage"]["completion_tokens_details"]
        assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    assert (reasoning, content) == ("It is a city.", "Paris.")


def test_a_stream_is_kept_alive_while_nothing_comes(engine: ScriptedEngine, start_api: Any) -> None:
    api = start_api(limits={"keep_alive_seconds": 0.05})
    engine.next(say_until_cancelled([70]))
    body = {"messages": QUESTION, "stream": True}
    with httpx.stream("POST", api.url + CHAT, json=body, timeout=120) as response:
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        comments = (line for line in response.iter_lines() if line.startswith(":"))
        assert [next(comments) for _ in range(3)] == [": keep-alive"] * 3
