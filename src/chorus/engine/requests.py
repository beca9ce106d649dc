"""What a front end asks of the engine, and what it hears back. Token ids only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        return not self.greedy and (
            self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0 or self.xtc_probability > 0.0
        )

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class Pooling(enum.Enum):
    MEAN = "mean"
    LAST = "last"


class Constraint(Protocol):
    """Which tokens may come next, and which one came. Owned by the one request it was made for."""

    def mask(self, since: float) -> np.ndarray[Any, np.dtype[np.int32]]: ...
    def advance(self, token: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    logprobs: int | None = None
    """How many of the best candidates to report with each token; 0: the token's own log probability alone."""
    constraint: Constraint | None = None
    pooling: Pooling | None = None
    """Wanted are the final hidden states of the prompt, pooled, and no tokens."""
    owner: str = ""
    """Whom the request is counted for; turns are shared fairly among owners."""

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.max_tokens


class Finish(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Timing:
    queue_seconds: float
    prompt_seconds: float
    generation_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """Token and log probability of the best candidates, best first."""


@dataclass(frozen=True, slots=True)
class Progress:
    id: str
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    error: str = ""
    timing: Timing | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] = ()
    accepted: bool = False
    """It is queued, and its grammar compiled."""
    field: str = ""
    """What the client calls what the error is about, where that is known."""
