"""Who decides how an answer is sampled."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from chorus.api.anthropic.request import MessagesRequest
from chorus.api.openai.completions.request import CompletionRequest
from chorus.config.sampling import DefaultSampling, SamplingOptions, given
from chorus.messages.engine import Sampling
from chorus.serving.requests.sampling import choose_sampling


def body(**options: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **options})


def test_every_option_is_a_rule_of_sampling() -> None:
    assert set(SamplingOptions.model_fields) == {rule.name for rule in fields(Sampling)}


def test_what_nobody_says_is_off_and_the_temperature_is_one() -> None:
    assert choose_sampling(body(seed=3), DefaultSampling()) == Sampling(temperature=1.0, xtc_threshold=0.1, seed=3)


def test_the_clients_word_goes_over_the_servers() -> None:
    defaults = DefaultSampling(temperature=0.5, top_k=7, repetition_penalty=1.2)
    chosen = choose_sampling(body(seed=3, temperature=0, repetition_context_size=9), defaults)
    rules = {"temperature": 0, "top_k": 7, "repetition_penalty": 1.2, "repetition_context": 9, "seed": 3}
    assert {name: getattr(chosen, name) for name in rules} == rules


@pytest.mark.parametrize(("top_k", "kept"), [(-1, 0), (0, 0), (40, 40)])
def test_minus_one_and_zero_turn_top_k_off(top_k: int, kept: int) -> None:
    assert choose_sampling(body(top_k=top_k), DefaultSampling(top_k=7)).top_k == kept


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"top_p": 0, "temperature": 0.7}, (0.7, 1.0)),
        ({"top_p": 0}, (0.0, 1.0)),
        ({"top_p": 0, "temperature": 0}, (0.0, 1.0)),
        ({"top_p": 0.5}, (0.25, 0.5)),
    ],
)
def test_no_top_p_is_off_beside_a_temperature_and_alone_the_likeliest_token(
    said: dict[str, float], expected: tuple[float, float]
) -> None:
    chosen = choose_sampling(body(**said), DefaultSampling(temperature=0.25, top_p=0.9))
    assert (chosen.temperature, chosen.top_p) == expected


def test_likely_means_a_tenth_where_a_request_asks_for_xtc_and_says_no_more() -> None:
    assert choose_sampling(body(xtc_probability=0.5), DefaultSampling()).xtc_threshold == 0.1


def test_a_seed_is_drawn_where_none_is_given_and_a_negative_one_is_kept_apart() -> None:
    first, second = (choose_sampling(body(), DefaultSampling()).seed for _ in range(2))
    assert first != second
    assert max(first, second) < 2**63
    assert choose_sampling(body(seed=-1), DefaultSampling()).seed == 2**64 - 1


@pytest.mark.parametrize("options", [DefaultSampling(), SamplingOptions(), body()])
def test_what_says_nothing_gives_nothing(options: BaseModel) -> None:
    assert given(options) == {}


def test_a_protocol_with_some_of_the_options_gives_those() -> None:
    messages = [{"role": "user", "content": "x"}]
    asked = MessagesRequest.model_validate({"messages": messages, "max_tokens": 1, "top_p": 0.5})
    assert given(asked) == {"top_p": 0.5}
