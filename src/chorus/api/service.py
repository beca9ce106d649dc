"""What all routes share: the engine link, the tokenizer, the served model, and the way from a body to a request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import chorus
from chorus.api.errors import ApiError, from_context, invalid, unavailable
from chorus.api.lifetime import Lifetimes
from chorus.api.openai_types import SamplingFields
from chorus.api.settings import ApiSettings, SamplingDefaults
from chorus.frontend.engine_client import EngineClient
from chorus.frontend.errors import ContextExceeded, EngineLost
from chorus.frontend.generation import TextGeneration, TextRequest, answer_budget
from chorus.frontend.messages import Sampling, draw_seed
from chorus.proto import engine_pb2 as pb
from chorus.text.errors import TextError
from chorus.text.tokenizer import Tokenizer

# About a millisecond of tokenizing; more than that would be felt by every running stream.
_OFF_LOOP_CHARACTERS = 2000

Value = TypeVar("Value")


@dataclass(frozen=True)
class EngineView:
    """What the engine says of itself, as far as it can be asked."""

    state: str
    progress: float
    detail: str
    description: pb.Description | None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


class Service:
    def __init__(self, settings: ApiSettings, client: EngineClient, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.client = client
        self.tokenizer = tokenizer
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)
        self._ready: pb.Description | None = None

    async def look(self) -> EngineView:
        try:
            description = await self.client.describe(self.settings.limits.describe_timeout_seconds)
        except EngineLost as error:
            self._ready = None
            return EngineView("unreachable", 0.0, str(error), None)
        view = EngineView(
            pb.EngineState.Name(description.state).lower(), description.progress, description.detail, description
        )
        self._ready = description if view.ready else None
        return view

    async def ready(self) -> pb.Description:
        """The ready engine's description, kept while its session lasts: it is not asked for every request."""
        if self._ready is not None and self.client.connected:
            return self._ready
        view = await self.look()
        if view.description is None or not view.ready:
            raise not_ready(view)
        return view.description

    def context_length(self, description: pb.Description) -> int:
        chosen = self.settings.context_length
        return description.context_length if chosen is None else min(chosen, description.context_length)

    def check_model(self, model: str | None) -> None:
        if not self.settings.serves(model):
            raise ApiError(
                404,
                f"The model {model!r} is not served here; {self.settings.model_id!r} is.",
                param="model",
                code="model_not_found",
            )

    def fingerprint(self, description: pb.Description) -> str:
        """Changes with whatever could change the tokens of a seeded request."""
        parts = [chorus.__version__, description.version, self.settings.model_id, description.parallel]
        parts += [f"{rank.device}/{rank.dtype}/{rank.first_layer}-{rank.last_layer}" for rank in description.ranks]
        return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]

    async def prepare(
        self, body: SamplingFields, prompt_field: str, tokenize: Callable[[], list[int]], size: int, label: str
    ) -> tuple[TextGeneration, int, pb.Description]:
        """Everything that can be refused without the engine's queue, in the order a client would mend it."""
        self.check_model(body.model)
        limits = self.settings.limits
        if len(body.stop_strings) > limits.max_stop_strings:
            raise invalid(f"stop: at most {limits.max_stop_strings} stop strings are accepted.", "stop")
        if len(body.logit_bias or ()) > limits.max_logit_biases:
            raise invalid(f"logit_bias: at most {limits.max_logit_biases} tokens are accepted.", "logit_bias")
        description = await self.ready()
        for token in body.logit_bias or ():
            if token >= description.vocabulary:
                raise _outside_vocabulary(token, description.vocabulary, "logit_bias")
        prompt = await self._tokens(tokenize, size, prompt_field)
        if not prompt:
            raise invalid(f"{prompt_field}: there is no token in it.", prompt_field)
        if (largest := max(prompt)) >= description.vocabulary:
            raise _outside_vocabulary(largest, description.vocabulary, prompt_field)
        try:
            budget = answer_budget(
                len(prompt), body.asked_tokens, self.settings.sampling.max_tokens, self.context_length(description)
            )
        except ContextExceeded as error:
            raise from_context(error, prompt_field) from None
        request = TextRequest(
            prompt=tuple(prompt),
            max_tokens=budget,
            sampling=choose_sampling(body, self.settings.sampling),
            stops=body.stop_strings,
            label=label,
        )
        return TextGeneration(self.client, self.tokenizer, request), len(prompt), description

    async def _tokens(self, tokenize: Callable[[], list[int]], size: int, prompt_field: str) -> list[int]:
        try:
            return tokenize() if size < _OFF_LOOP_CHARACTERS else await asyncio.to_thread(tokenize)
        except TextError as error:
            raise invalid(f"{prompt_field}: {error}.", prompt_field) from None


def choose_sampling(body: SamplingFields, defaults: SamplingDefaults) -> Sampling:
    """The client's word, else the server's default, else the protocol's."""
    top_k = _first(body.top_k, defaults.top_k, 0)
    return Sampling(
        seed=draw_seed() if body.seed is None else body.seed % 2**64,
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        top_k=max(top_k, 0),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        repetition_context=_first(body.repetition_context_size, 20),
        presence_penalty=_first(body.presence_penalty, 0.0),
        frequency_penalty=_first(body.frequency_penalty, 0.0),
        logit_bias=dict(body.logit_bias or {}),
    )


def not_ready(view: EngineView) -> ApiError:
    doing = f": {view.detail}" if view.detail else ""
    percent = f" ({view.progress:.0%})" if view.state == "loading" else ""
    return unavailable(
        f"The engine is {view.state}{percent}{doing}.",
        "engine_not_ready",
        {"state": view.state, "progress": view.progress, "detail": view.detail},
    )


def _outside_vocabulary(token: int, vocabulary: int, field: str) -> ApiError:
    return invalid(f"{field}: token {token} is outside the model's vocabulary of {vocabulary}.", field)


def _first(*values: Value | None) -> Value:
    return next(value for value in values if value is not None)
