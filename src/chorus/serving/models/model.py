"""The model that a front end serves, as the preparation of requests sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from chorus.serving.engine_link.client import EngineClient
from chorus.serving.prompt import plain_tools
from chorus.serving.prompt.answer_format import AnswerFormat
from chorus.serving.prompt.remembered import AnswerMemory
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.requests.measure import Amounts
from chorus.serving.workers import Workers
from chorus.text.parsers import choose


@dataclass(frozen=True)
class Capacity:
    """How much the engine's model can hold, and how many tokens it knows."""

    context_length: int
    vocabulary: int


class ModelLimits(Amounts, Protocol):
    """What a request may hold, and how many may be prepared at once."""

    @property
    def max_choices(self) -> int: ...
    @property
    def max_logprobs(self) -> int: ...
    @property
    def max_preparing(self) -> int: ...
    @property
    def max_remembered_answers(self) -> int: ...
    @property
    def max_remembered_bytes(self) -> int: ...


class ServedModel:
    """Its tokenizer, the form of its answers, the limits of requests and its engine."""

    def __init__(
        self,
        tokenizer: ServedTokenizer,
        limits: ModelLimits,
        client: EngineClient,
        capacity: Callable[[], Awaitable[Capacity]],
        tool_parser: str | None = None,
        max_tokens: int | None = None,
        client_rules: bool = True,
    ) -> None:
        """`tool_parser` goes over what the chat template shows."""
        self.tokenizer = tokenizer
        self.limits = limits
        self.client = client
        self.capacity = capacity
        """Asks the engine, which may not be ready."""
        self.max_tokens = max_tokens
        """For requests that give no limit; None: the rest of the context."""
        parser = tool_parser or (None if tokenizer.shows_tools else plain_tools.PARSER)
        self.answer_format = AnswerFormat(choose(tokenizer.chat_template, parser), tokenizer)
        self.workers = Workers(limits.max_preparing)
        most = limits.max_remembered_answers, limits.max_remembered_bytes
        self.memory = AnswerMemory(*most) if client_rules and all(most) else None
        """Of what the model wrote, for the requests that send it back."""
