"""How a client wants tokens to be drawn, and what stands for what it did not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from chorus.config.front_end import SamplingDefaults
from chorus.messages.engine import Sampling, draw_seed

Value = TypeVar("Value")


@dataclass(frozen=True)
class SamplingWish:
    """None where the client said nothing."""

    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_context: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


def choose_sampling(wish: SamplingWish, defaults: SamplingDefaults) -> Sampling:
    """The client's word, else the server's default, else the protocol's."""
    return Sampling(
        seed=draw_seed() if wish.seed is None else wish.seed % 2**64,
        temperature=_first(wish.temperature, defaults.temperature, 1.0),
        top_p=_first(wish.top_p, defaults.top_p, 1.0),
        top_k=max(_first(wish.top_k, defaults.top_k, 0), 0),
        min_p=_first(wish.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(wish.repetition_penalty, defaults.repetition_penalty, 1.0),
        repetition_context=_first(wish.repetition_context, 20),
        presence_penalty=_first(wish.presence_penalty, 0.0),
        frequency_penalty=_first(wish.frequency_penalty, 0.0),
        xtc_probability=_first(wish.xtc_probability, 0.0),
        xtc_threshold=_first(wish.xtc_threshold, 0.0),
        logit_bias=dict(wish.logit_bias),
    )


def _first(*values: Value | None) -> Value:
    return next(value for value in values if value is not None)
