from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, open_requests
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say, say_until_cancelled

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris. 😀 naïve"


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False)


def events_of(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


def test_an_answer_in_one_body(client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    tokens = tokens_of(tokenizer, ANSWER)
    engine.next(say(tokens, cached=3))
    answer = client.chat.completions.create(model=MODEL_ID, messages=QUESTION)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL_ID
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint
    prompt = tokenizer.chat_prompt(QUESTION)
    assert list(engine.last.prompt) == prompt
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(tokens) + 1  # the stop token counts
    assert answer.usage.total_tokens == len(prompt) + len(tokens) + 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_a_prompt_tells_where_others_may_part_from_it(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokens_of(tokenizer, "</think>Good.")))
    body = {"messages": QUESTION, "reasoning": {"enabled": True}}
    tool_http.post("/v1/chat/completions", json=body).raise_for_status()
    sent = engine.last
    parts = [tokenizer.decode(sent.prompt[:cut], skip_special=False) for cut in sent.cuts]
    assert all(part.endswith(("<|im_start|>", "<|im_end|>")) for part in parts)
    assert [tokenizer.decode(sent.prompt[cut:], skip_special=False) for cut in sent.needed_cuts] == [
        "assistant\n<think>\n"
    ]


def test_the_performance_figures_come_from_the_engine(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    tokens = tokens_of(tokenizer, ANSWER)
    engine.next(say(tokens, cached=3))
    body = http.post("/v1/chat/completions", json={"messages": QUESTION}).json()
    performance = body["performance"]
    assert performance["queue_seconds"] == 0.25
    assert performance["cached_tokens"] == 3
    assert performance["prompt_tokens_per_second"] == pytest.approx((body["usage"]["prompt_tokens"] - 3) / 0.5)
    assert performance["generation_tokens_per_second"] == pytest.approx(len(tokens) / 2.0)
    assert performance["time_to_first_token_seconds"] > 0


def test_a_stream_through_the_official_client(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokens_of(tokenizer, ANSWER)))
    chunks: list[Any] = list(client.chat.completions.create(model="tiny", messages=QUESTION, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_is_well_formed_events_and_ends_with_done(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    tokens = tokens_of(tokenizer, ANSWER)
    engine.next(say(tokens))
    body = {"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last = events_of(response)
    assert last == "[DONE]"
    *chunks, finish, usage = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["usage"] is None for chunk in [*chunks, finish])
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert finish["performance"]["queue_seconds"] == 0.25
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(tokens) + 1


def test_a_stream_has_no_usage_unless_asked(http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say(tokens_of(tokenizer, "Paris")))
    response = http.post("/v1/chat/completions", json={"messages": QUESTION, "stream": True})
    assert '"usage"' not in response.text


def test_no_chunk_holds_half_a_character(http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say(tokens_of(tokenizer, "😀")))
    response = http.post("/v1/chat/completions", json={"messages": QUESTION, "stream": True})
    assert "\ufffd" not in response.text
    assert "😀" in response.text


def test_running_into_the_limit_is_reported_as_length(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokens_of(tokenizer, "Par")[:1], pb.LENGTH))
    answer = client.chat.completions.create(model=MODEL_ID, messages=QUESTION, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    assert engine.last.max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["Paris", ["zzz", "s Par"], ["France is P"]])
def test_a_stop_string_over_many_tokens_ends_the_answer_and_the_engine_request(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stop: str | list[str], stream: bool
) -> None:
    tokens = [token for letter in ANSWER for token in tokens_of(tokenizer, letter)]
    engine.next(say_until_cancelled(tokens, cached=2))
    body = {"messages": QUESTION, "stop": stop, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = http.post("/v1/chat/completions", json=body)
    engine.wait_for_run().wait_cancelled()
    found = next(text for text in ([stop] if isinstance(stop, str) else stop) if text in ANSWER)
    wanted = ANSWER.partition(found)[0]
    if stream:
        *chunks, usage_chunk = [json.loads(event) for event in events_of(response)[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason, usage = chunks[-1]["choices"][0]["finish_reason"], usage_chunk["usage"]
    else:
        answer = response.json()
        text, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        reason = answer["choices"][0]["finish_reason"]
    assert (text, reason) == (wanted, "stop")
    assert usage["completion_tokens"] == len(wanted + found)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert open_requests(http) == 0


def test_a_stop_string_that_never_completes_is_not_lost(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokens_of(tokenizer, "It is Par")))
    answer = client.chat.completions.create(model=MODEL_ID, messages=QUESTION, stop=["Paris"])
    assert answer.choices[0].message.content == "It is Par"


def test_every_sampling_field_reaches_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    client.chat.completions.create(
        model=MODEL_ID,
        messages=QUESTION,
        temperature=0.5,
        top_p=0.75,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": -100, "7": 1.5},
        seed=1234,
        max_completion_tokens=9,
        user="somebody",
        metadata={"a": "b"},
        store=True,
        extra_body={"top_k": 40, "min_p": 0.25, "repetition_penalty": 1.5, "repetition_context_size": 64},
    )
    sampling = engine.last.sampling
    assert engine.last.max_tokens == 9
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.75, 40, 0.25)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.repetition_context) == (1.5, 64)
    assert dict(sampling.logit_bias) == {5: -100.0, 7: 1.5}
    assert sampling.seed == 1234


def test_fields_left_out_mean_what_the_protocol_says(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say([70]), say([70]))
    for _ in range(2):
        http.post("/v1/chat/completions", json={"messages": QUESTION}).raise_for_status()
    first, second = (run.submit for run in engine.runs)
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, 0)
    assert first.sampling.repetition_penalty == 1.0
    assert first.max_tokens == engine.description.context_length - len(first.prompt)
    assert frozenset(first.stop_tokens) == tokenizer.eos_ids
    assert first.sampling.seed != second.sampling.seed
    assert max(first.sampling.seed, second.sampling.seed) < 2**63


@pytest.mark.parametrize("model", [None, "default_model", MODEL_ID, "tiny", "gpt-4"])
def test_each_name_of_the_served_model_is_taken(http: httpx.Client, engine: ScriptedEngine, model: str | None) -> None:
    engine.next(say([70]))
    body = {"messages": QUESTION} if model is None else {"messages": QUESTION, "model": model}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.json()["model"] == MODEL_ID


def test_every_role_and_text_parts_reach_the_template(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say([70]))
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three", "refusal": None, "annotations": [], "audio": None},
        {"role": "tool", "content": "four", "tool_call_id": "call-1"},
        {"role": "user", "content": "five", "name": "bob"},
    ]
    http.post("/v1/chat/completions", json={"messages": messages}).raise_for_status()
    plain = [("system", "Be brief."), ("user", "one two"), ("assistant", "three"), ("tool", "four"), ("user", "five")]
    expected = tokenizer.chat_prompt([{"role": role, "content": text} for role, text in plain])
    assert list(engine.last.prompt) == expected


def test_settings_give_the_defaults(engine: ScriptedEngine, start_api) -> None:  # type: ignore[no-untyped-def]
    defaults = {"temperature": 0.0, "top_p": 0.5, "top_k": 7}
    api = start_api(sampling=defaults, max_tokens=12, context_length=100)
    engine.next(say([70]), say([70]))
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as http:
        http.post("/v1/chat/completions", json={"messages": QUESTION}).raise_for_status()
        sampling = engine.last.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, engine.last.max_tokens) == (0.0, 0.5, 7, 12)
        http.post("/v1/chat/completions", json={"messages": QUESTION, "temperature": 1.5}).raise_for_status()
        assert engine.last.sampling.temperature == 1.5
        too_much = http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 101})
        assert too_much.status_code == 400


def test_a_long_prompt_is_served_whole(http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say([70]))
    engine.description.context_length = 20000
    try:
        http.get("/health")
        prompt = "Many machines, one voice. " * 300
        http.post("/v1/completions", json={"prompt": prompt}).raise_for_status()
        assert list(engine.last.prompt) == tokenizer.encode(prompt)
    finally:
        engine.description.context_length = 256
        http.get("/health")
