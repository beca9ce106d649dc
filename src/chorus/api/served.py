"""One model of this server: its engine, its tokenizer, and what is known of both."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import chorus
from chorus.api.errors import ApiError, sentence, unavailable
from chorus.api.usage import Performance
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.messages.deploy import ModelState
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import EngineLost
from chorus.serving.models.directory import Model
from chorus.serving.models.model import Capacity, ServedModel
from chorus.serving.prompt.tokenizer import ServedTokenizer


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


class Served:
    def __init__(
        self, settings: ModelSettings, shared: ApiSettings, client: EngineClient, tokenizer: ServedTokenizer
    ) -> None:
        """`shared` are the settings of the whole server."""
        self.settings = settings
        self.client = client
        self.tokenizer = tokenizer
        self.model = ServedModel(
            tokenizer,
            shared.limits,
            client,
            self.capacity,
            settings.tool_parser,
            settings.max_tokens,
            shared.client_rules,
        )
        self._describe_seconds = shared.limits.describe_timeout_seconds
        self.fingerprint = ""
        """Changes with whatever could change the tokens of a seeded request."""
        self._ready: pb.Description | None = None
        self._last: Capacity | None = None
        """Of the engine that was ready last."""
        self.ranks: tuple[pb.RankDescription, ...] = ()
        """Who computes, as the engine last said."""
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._first_tokens: deque[float] = deque(maxlen=RATES_KEPT)
        self._answered = 0

    def expect(self) -> None:
        self.client.recovery.expect()
        self.client.watch()

    def abandon(self, why: str) -> None:
        self.client.recovery.give_up(why)
        self.client.unwatch()

    async def close(self) -> None:
        await self.client.close()

    def note(self, performance: Performance) -> None:
        self._answered += 1
        if (rate := performance.generation_tokens_per_second) is not None:
            self._rates.append(rate)
        if (seconds := performance.time_to_first_token_seconds) is not None:
            self._first_tokens.append(seconds)

    def observed(self) -> dict[str, Any]:
        return {
            "requests": self._answered,
            "tokens_per_second": median(self._rates) if self._rates else None,
            "first_token_seconds": median(self._first_tokens) if self._first_tokens else None,
        }

    async def look(self) -> EngineView:
        try:
            description = await self.client.describe(self._describe_seconds)
        except EngineLost as error:
            self._ready = None
            return EngineView("unreachable", 0.0, str(error), None)
        view = EngineView(
            pb.EngineState.Name(description.state).lower(), description.progress, description.detail, description
        )
        self._ready = description if view.ready else None
        if description.state in (pb.READY, pb.RECOVERING):
            self.fingerprint = fingerprint(self.settings.id, description)
            self._last = Capacity(self.context_length(description), description.vocabulary)
            self.ranks = tuple(description.ranks)
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

    @property
    def known(self) -> Capacity | None:
        """Of the engine that was ready last; None where none was looked at."""
        return self._last

    def context_length(self, description: pb.Description) -> int:
        chosen = self.settings.context_length
        return description.context_length if chosen is None else min(chosen, description.context_length)


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


ANY_LENGTH = 2**31 - 1
"""Where nobody knows how long a context may be."""


async def text_capacity(model: Model[Served], served: Served) -> Capacity:
    """For what needs only the tokenizer: as the engine says where one serves, and without one as far as is known."""
    if model.state is ModelState.READY:
        return await served.capacity()
    return Capacity(known_context(model) or ANY_LENGTH, served.tokenizer.vocabulary)


def known_context(model: Model[Served]) -> int | None:
    """As its engine said last, also where that has gone since, or its files say; never more than is served of it."""
    if model.front and model.front.known:
        model.context_length = model.front.known.context_length
    chosen, known = model.settings.context_length, model.context_length or read_config(model.settings.path).context
    return min((length for length in (chosen, known) if length), default=None)


@dataclass(frozen=True)
class ModelFile:
    """What a model's own config.json says; None where it does not, since a model is served all the same."""

    architecture: str | None
    context: int | None


def read_config(model_path: Path) -> ModelFile:
    try:
        config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ModelFile(None, None)
    said = config if isinstance(config, dict) else {}
    classes = said.get("architectures")
    named = [*(classes if isinstance(classes, list) else [classes]), said.get("model_type")]
    inner = said.get("text_config")
    lengths = [part.get("max_position_embeddings") for part in (said, inner) if isinstance(part, dict)]
    return ModelFile(
        next((name for name in named if isinstance(name, str)), None),
        next((length for length in lengths if isinstance(length, int) and length > 0), None),
    )
