from __future__ import annotations

import httpx
import openai
import pytest

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID
from tests.api.scripted_engine import ScriptedEngine, say


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
