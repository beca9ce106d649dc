"""The one model this backend serves: loaded on request, given up on request, loaded again."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chorus.config.sections import ApiConfig
from chorus.localai.division import divided
from chorus.localai.engine_host import EngineHost, EngineLaunch, HostState
from chorus.localai.errors import LoadFailed
from chorus.localai.plan import UNSAID_CONTEXT, LoadPlan, Tree, plan_load
from chorus.messages.proto import engine_pb2
from chorus.messages.proto import localai_pb2 as wire
from chorus.models import LocalModel, ModelError, resolve
from chorus.models.servable import check_servable
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.models.model import Capacity, ServedModel
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.telemetry import events
from chorus.telemetry.telling import tell
from chorus.text.errors import TokenizerError
from chorus.text.parsers import ParserFamily, choose

log = logging.getLogger(__name__)

EngineLauncher = Callable[[LoadPlan, LocalModel, Path], EngineLaunch]
"""What to run for a plan; files and sockets go into the folder."""


@dataclass(frozen=True)
class LoadedModel:
    plan: LoadPlan
    path: Path
    model: ServedModel
    host: EngineHost
    capacity: Capacity

    @property
    def embeddings(self) -> bool | None:
        """Whether this model is for embeddings; None: as its files say."""
        return self.plan.embeddings or self.plan.settings.api.embeddings

    @property
    def limits(self) -> ApiConfig:
        """What a request may hold is what it may hold over HTTP."""
        return self.plan.settings.api


class Models:
    def __init__(self, flags: Tree, launch: EngineLauncher, trust_remote_code: bool = False) -> None:
        self._flags = flags
        self._launch = launch
        self._trust_remote_code = trust_remote_code
        self._turn = asyncio.Lock()
        self._loading: asyncio.Task[LoadedModel] | None = None
        self._request = b""
        self._name = ""
        """Of what is being loaded: as it was asked for, until it is found."""
        self.current: LoadedModel | None = None
        self.failure: str | None = None
        """Why the last load failed, if it did."""

    @property
    def loading(self) -> bool:
        return self._loading is not None

    async def load(self, request: wire.ModelOptions) -> None:
        """Raises LoadFailed. The same request again changes nothing while its model serves."""
        key = request.SerializeToString(deterministic=True)
        async with self._turn:
            if self.current and key == self._request and self.current.host.state is not HostState.FAILED:
                return
            await self._drop(f"LocalAI asks for {request.Model}")
            self._name = request.Model
            self._loading = asyncio.create_task(self._load(request), name="load")
            try:
                self.current = await self._loading
            except LoadFailed as error:
                self.failure = str(error)
                tell(events.MODEL_FAILED, model=self._name, why=str(error))
                raise
            except asyncio.CancelledError:
                if (this := asyncio.current_task()) and this.cancelling():
                    raise
                tell(events.MODEL_UNLOADED, model=self._name, why="it was freed while it was loading")
                raise LoadFailed(f"{request.Model} was freed while it was loading") from None
            finally:
                self._loading = None
            self._request, self.failure = key, None

    async def free(self) -> None:
        if self._loading:
            self._loading.cancel()
        async with self._turn:
            await self._drop("LocalAI freed it, or has ended")
            self.failure = None

    async def _drop(self, why: str) -> None:
        if self.current:
            gone, self.current = self.current, None
            await gone.host.stop()
            log.info("freed %s", gone.plan.identity)
            tell(events.MODEL_UNLOADED, model=gone.host.model, why=why)

    async def _load(self, request: wire.ModelOptions) -> LoadedModel:
        # Files are read and perhaps downloaded here: on a thread, so that Health answers meanwhile.
        plan = await asyncio.to_thread(plan_load, request, self._flags, trust_remote_code=self._trust_remote_code)
        for note in plan.notes:
            log.warning("%s", note)
        model = await asyncio.to_thread(_find, plan.model, request.ModelFile)
        self._name = model.id
        plan = await asyncio.to_thread(divided, plan, model)
        began, ranks = time.monotonic(), len(plan.ranks) or plan.settings.engine.ranks
        tell(events.MODEL_LOADING, model=model.id, ranks=ranks)
        host = EngineHost(
            lambda folder: self._launch(plan, model, folder), recovery=plan.settings.recovery, model=model.id
        )

        async def capacity() -> Capacity:
            return Capacity(description.context_length, description.vocabulary)

        try:
            description, served = await asyncio.gather(
                host.start(), asyncio.to_thread(_load_text, model, plan, host.client, capacity)
            )
        except BaseException:
            await host.stop()
            raise
        log.info("loaded %s over %s", plan.identity, _shape(description))
        tell(events.MODEL_READY, model=model.id, seconds=time.monotonic() - began)
        _note_context(request.ContextSize, plan, description.context_length)
        return LoadedModel(plan, model.path, served, host, await capacity())


def _find(name: str, file: str) -> LocalModel:
    """`file` is where LocalAI's models folder would have it."""
    try:
        return check_servable(resolve(name))
    except ModelError as error:
        elsewhere = f" Nor is there {file}." if file not in ("", name) else ""
        raise LoadFailed(f"{error}{elsewhere}") from None


def _load_text(
    model: LocalModel, plan: LoadPlan, client: EngineClient, capacity: Callable[[], Awaitable[Capacity]]
) -> ServedModel:
    try:
        tokenizer = ServedTokenizer.load(model.path, trust_remote_code=plan.settings.engine.trust_remote_code)
        tokenizer = with_end_token(tokenizer, plan.special_tokens)
        api = plan.settings.api
        served = ServedModel(tokenizer, api, client, capacity, api.tool_parser, client_rules=api.client_rules)
        _note_parser(choose(tokenizer.chat_template), served.answer_format.family, api.tool_parser)
        return served
    except TokenizerError as error:
        raise LoadFailed(str(error)) from None
    except ValueError as error:
        raise LoadFailed(f"api.tool_parser: {error}") from None


def with_end_token(tokenizer: ServedTokenizer, special_tokens: Mapping[str, str]) -> ServedTokenizer:
    """The owner's eos_token ends an answer too. (The other overrides are seen by the chat template.)"""
    if (text := special_tokens.get("eos_token")) is None:
        return tokenizer
    ids = tokenizer.encode(text, special=False)
    if len(ids) != 1:
        raise LoadFailed(f"option eos_token: {text!r} is not one token of this model's vocabulary")
    other = copy.copy(tokenizer)
    other.eos_ids = tokenizer.eos_ids | set(ids)
    return other


def _note_parser(shown: ParserFamily, used: ParserFamily, named: str | None) -> None:
    """LocalAI's importer names a parser by the model's name alone."""
    if named and shown.calls is not None and shown.name != used.name:
        log.warning(
            "tool_parser:%s goes over what the chat template shows, %s: leave it out if calls come back as text",
            named,
            shown.name,
        )


def _note_context(asked: int, plan: LoadPlan, served: int) -> None:
    if asked == UNSAID_CONTEXT < served and plan.settings.engine.context is None:
        log.info(
            "the context is %d tokens: LocalAI sends context_size %d where a model's file has none, so that number "
            "counts as not given; to serve no more than that, give the option context:%d",
            served,
            asked,
            asked,
        )


def _shape(description: engine_pb2.Description) -> str:
    ranks = [f"rank {rank.rank} layers {rank.first_layer}-{rank.last_layer - 1}" for rank in description.ranks]
    return f"{len(ranks)} rank{'s' if len(ranks) != 1 else ''} ({', '.join(ranks)})"
