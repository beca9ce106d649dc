"""What a client asked of a generation, whichever protocol it spoke."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from chorus.config.front_end import SamplingDefaults
from chorus.messages.engine import Sampling, draw_seed
from chorus.messages.grammar import Grammar
from chorus.text.parsers.toolkit.pieces import OutputParser

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


@dataclass(frozen=True)
class FieldNames:
    """What the client's protocol calls the fields that an error may name."""

    prompt: str = "messages"
    stop: str = "stop"
    count: str = "n"


@dataclass(frozen=True)
class Prompt:
    """Tokens, or the way to them; `size` in characters tells how long that will take."""

    tokenize: Callable[[], list[int]]
    size: int = 0


@dataclass(frozen=True)
class Reading:
    """How the answer's text is to be read; the parser is made for each choice, once the prompt is known."""

    parser: Callable[[tuple[int, ...]], OutputParser]
    show_special: bool = False
    most_calls: int | None = None
    grammar_after_reasoning: Callable[[tuple[int, ...], Grammar], Grammar] | None = None


@dataclass(frozen=True)
class Wish:
    prompts: tuple[Prompt, ...]
    sampling: SamplingWish
    model: str | None = None
    max_tokens: int | None = None
    cut_to_fit: bool = False
    """Where the protocol makes clients name a limit, it is a ceiling and need not fit the context."""
    stops: tuple[str, ...] = ()
    count: int = 1
    """Choices for each prompt."""
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None
    reading: Reading | None = None
    fields: FieldNames = FieldNames()

    @property
    def choices(self) -> int:
        return self.count * len(self.prompts)


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
