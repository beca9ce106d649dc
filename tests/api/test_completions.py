from __future__ import annotations

import json

import httpx
import openai
import pytest

from chorus.serving.prepare import choice_seed
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID
from tests.api.scripted_engine import Run, ScriptedEngine, say


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: [text]])
def test_a_text_prompt(client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer, wrap) -> None:  # type: ignore[no-untyped-def]
    engine.next(say(tokenizer.encode(" is Paris", special=False)))
    answer = client.completions.create(model=MODEL_ID, prompt=wrap("The capital of France"), max_tokens=20)
    assert answer.choices[0].text == " is Paris"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion"
    assert list(engine.last.prompt) == tokenizer.encode("The capital of France")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(engine.last.prompt)


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_a_prompt_of_tokens_goes_to_the_engine_as_it_is(
    client: openai.OpenAI, engine: ScriptedEngine, prompt: list[int]
) -> None:
    engine.next(say([70]))
    client.completions.create(model=MODEL_ID, prompt=prompt)
    assert list(engine.last.prompt) == [5, 6, 7]


def test_a_prompt_may_be_parted_from_where_it_ends(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.next(say([7]), say([7]))
    client.completions.create(model=MODEL_ID, prompt=[[5, 6], [5, 6, 7]])
    assert sorted(list(run.submit.cuts) for run in engine.runs) == [[2], [3]]
    assert not any(run.submit.needed_cuts for run in engine.runs)


def test_a_stream(client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(say(tokenizer.encode(" is Paris", special=False)))
    options = {"include_usage": True}
    chunks = list(client.completions.create(model=MODEL_ID, prompt="x", stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == " is Paris"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 1


def test_a_body_without_a_content_type_is_read_all_the_same(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers).status_code == 200


def test_several_prompts_and_choices(client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    def answer(run: Run) -> None:
        text = f"{list(run.submit.prompt)} {run.submit.sampling.seed}"
        say(tokenizer.encode(text, special=False))(run)

    engine.default = answer
    answers = client.completions.create(model=MODEL_ID, prompt=[[5, 6], [7]], n=2, seed=3)
    other = choice_seed(3, 1)
    expected = ["[5, 6] 3", f"[5, 6] {other}", "[7] 3", f"[7] {other}"]
    assert [choice.text for choice in answers.choices] == expected
    assert [choice.index for choice in answers.choices] == [0, 1, 2, 3]
    assert answers.usage is not None
    assert answers.usage.prompt_tokens == 3


def test_equal_prompts_without_a_seed_are_drawn_apart(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.default = lambda run: say(tokenizer.encode(str(run.submit.sampling.seed), special=False))(run)
    answers = client.completions.create(model=MODEL_ID, prompt=[[5, 6], [5, 6], [5, 6]])
    assert len({choice.text for choice in answers.choices}) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_repeats_the_prompt(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.default = say(tokenizer.encode(" is Paris", special=False))
    prompt = ["The capital", "It"]
    texts = ["", ""]
    if stream:
        for chunk in client.completions.create(model=MODEL_ID, prompt=prompt, echo=True, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = client.completions.create(model=MODEL_ID, prompt=prompt, echo=True)
        texts = [choice.text for choice in answer.choices]
    assert texts == ["The capital is Paris", "It is Paris"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_with_offsets(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    tokens = tokenizer.encode("Paris is nice", special=False)
    engine.next(say(tokens))
    names, offsets, tops = [], [], []
    answers = client.completions.create(model=MODEL_ID, prompt="x", logprobs=2, stream=stream)
    for part in answers if stream else [answers]:
        if (logprobs := part.choices[0].logprobs) is not None:
            names += logprobs.tokens
            offsets += logprobs.text_offset
            tops += logprobs.top_logprobs
    assert names == [tokenizer.decode([token]) for token in tokens]
    assert ["Paris is nice"[offset:][: len(name)] for offset, name in zip(offsets, names, strict=True)] == names
    assert all(top[name] == -0.5 for top, name in zip(tops, names, strict=True))
    assert engine.last.top_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(http: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    engine.default = say([70, 71, 72])
    body = {"prompt": [[5, 6], [7]], "return_token_ids": True, "stream": stream}
    response = http.post("/v1/completions", json=body)
    prompts: dict[int, list[int]] = {0: [], 1: []}
    answers: dict[int, list[int]] = {0: [], 1: []}
    events = response.text.split("\n\n")[:-2] if stream else ["data: " + response.text]
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            prompts[choice["index"]] += choice.get("prompt_token_ids", [])
            answers[choice["index"]] += choice["token_ids"]
    assert prompts == {0: [5, 6], 1: [7]}
    assert answers == {0: [70, 71, 72], 1: [70, 71, 72]}


def test_best_of_as_many_as_are_asked_for_is_nothing_more(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.default = say([70])
    assert len(client.completions.create(model=MODEL_ID, prompt="x", n=2, best_of=2).choices) == 2
