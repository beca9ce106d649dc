"""What all routes share: the settings, the served model, its engine and what is known of it."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

import chorus
from chorus.api.errors import ApiError, sentence, unavailable
from chorus.api.server.gate import Record
from chorus.api.server.lifetime import Lifetimes
from chorus.config.front_end import ApiSettings
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.engine_client import EngineClient
from chorus.serving.errors import EngineLost
from chorus.serving.model import Capacity, ServedModel
from chorus.serving.tokenizer import ServedTokenizer


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


RATES_KEPT = 32


class Service:
    def __init__(self, settings: ApiSettings, client: EngineClient, tokenizer: ServedTokenizer) -> None:
        self.settings = settings
        self.client = client
        self.tokenizer = tokenizer
        self.model = ServedModel(
            tokenizer,
            settings.limits,
            client,
            self.capacity,
            settings.tool_parser,
            settings.max_tokens,
            settings.client_rules,
        )
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)
        self.fingerprint = ""
        """Changes with whatever could change the tokens of a seeded request."""
        self._ready: pb.Description | None = None
        self._last: Capacity | None = None
        """Of the engine that was ready last."""
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._answered = 0

    def note_rate(self, tokens_per_second: float | None) -> None:
        self._answered += 1
        if tokens_per_second is not None:
            self._rates.append(tokens_per_second)

    def observed(self) -> dict[str, Any]:
        return {"requests": self._answered, "tokens_per_second": median(self._rates) if self._rates else None}

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
        if description.state in (pb.READY, pb.RECOVERING):
            self.fingerprint = fingerprint(self.settings.model_id, description)
            self._last = Capacity(self.context_length(description), description.vocabulary)
        return view

    async def capacity(self) -> Capacity:
        """Of the ready engine, kept while its session lasts: it is not asked for every request. While an engine that
        has served is away, what was known of it holds: its requests wait for the next one.
        """
        current = self.client.recovery.waits or (self._ready is not None and self.client.connected)
        if self._last is None or not current:
            view = await self.look()
            if self._last is None and self.client.recovery.waits:
                # It has served others, and this front end is new.
                await self.client.recovery.engine()
                view = await self.look()
            if self._last is None:
                raise not_ready(view)
        return self._last

    def context_length(self, description: pb.Description) -> int:
        chosen = self.settings.context_length
        return description.context_length if chosen is None else min(chosen, description.context_length)

    def check_model(self, model: str | None, record: Record) -> None:
        """Whether there is a model that a key is not for cannot be told from the answer, as at OpenAI."""
        settings = self.settings
        if not record.may_use(settings.names):
            asked = "The default model" if model is None else f"The model {model!r}"
            told = f"{asked} is not served to the key {record.owner!r}; GET /v1/models lists what is."
        elif not settings.serves(model):
            told = f"The model {model!r} is not served here; {settings.model_id!r} is."
        else:
            return
        raise ApiError(404, told, param="model", code="model_not_found")


def fingerprint(model_id: str, description: pb.Description) -> str:
    parts = [chorus.__version__, description.version, model_id, description.parallel]
    parts += [f"{rank.device}/{rank.dtype}/{rank.first_layer}-{rank.last_layer}" for rank in description.ranks]
    return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]


def not_ready(view: EngineView) -> ApiError:
    doing = f": {view.detail}" if view.detail else ""
    percent = f" ({view.progress:.0%})" if view.state == "loading" else ""
    told = f"the engine is {view.state}{percent}{doing}" if view.description else view.detail
    return unavailable(
        sentence(told),
        "engine_not_ready",
        {"state": view.state, "progress": view.progress, "detail": view.detail},
    )
