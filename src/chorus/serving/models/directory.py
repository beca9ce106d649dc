"""The models of a front end: which there are, who waits for which, and what of each is in memory.

A plain object: whoever attends the owner of the models hands it the tables, and sends the owner its reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from pydantic import ValidationError

from chorus.config.front_end import ModelSettings
from chorus.messages.deploy import Demand, ModelRow, ModelState, PullRow, Report, Table, nearest_name
from chorus.platform.memory.freed_buffers import give_back_freed
from chorus.serving.errors import ModelFailed, ModelNotReady, UnknownModel

log = logging.getLogger(__name__)

DEFAULT = "default_model"
"""A name of the first model, whatever that is."""

QUIET_SECONDS = 2.0
"""Whoever waits for a model for less is told nothing meanwhile."""
_TELL_SECONDS = 1.0
FAILED_SECONDS = 2.0
"""How long a request for a model that has failed before waits for its owner to try again. That happens on demand, after
a pause; where the pause is not over, the request is told why the model failed."""

_IN_MEMORY = frozenset({ModelState.LOADING, ModelState.READY, ModelState.DRAINING})
"""States in which there is an engine, or will be soon."""
_READ_AHEAD = frozenset({ModelState.LOADING, ModelState.READY})
"""Whoever waits for the model need not wait for its tokenizer behind it; and a front end that finds it loaded, because
it took over from another, hears what its engine counts before anybody asks for it."""


class Front(Protocol):
    """What a front end has in memory of a model: its tokenizer, and the client of its engine."""

    def expect(self) -> None:
        """The owner says that the engine serves."""

    def abandon(self, why: str) -> None:
        """The engine is gone, and none will come in its place."""

    async def close(self) -> None: ...


F = TypeVar("F", bound=Front)
Tell = Callable[[], Awaitable[None]]


class _Kept(Generic[F]):
    """A model in memory, or on its way there; it goes with the last that holds it once it is retired."""

    def __init__(self, settings: ModelSettings, front: F | None, make: Callable[[ModelSettings], F]) -> None:
        self.settings = settings
        self.front = front
        self.holders = 0
        self.retired = False
        self._making = None if front else asyncio.create_task(asyncio.to_thread(make, settings))

    async def get(self) -> F:
        if self._making is not None:
            # Others may wait for it too, so it goes on where one of them leaves.
            self.front = await asyncio.shield(self._making)
            self._making = None
        assert self.front is not None
        return self.front

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # whoever wanted it was told
            await (await self.get()).close()


class Model(Generic[F]):
    """One model: as its owner last described it, and what is asked for of it here."""

    def __init__(self, directory: Directory[F], row: ModelRow, settings: ModelSettings, front: F | None) -> None:
        self._directory = directory
        self.row = row
        self.settings = settings
        self.running = 0
        self.served = 0
        self.keep_alive: float | None = None
        self.has_been_ready = False
        self.context_length: int | None = None
        """As the engine said when it was last asked; the model may have gone since."""
        self._waiting: dict[int, float] = {}
        """Since when each request that waits has, the first one first."""
        self._failures = 0
        self._listed = True
        self._kept = _Kept(settings, front, directory.make) if front else None
        self._changed = asyncio.Event()

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def state(self) -> ModelState:
        return self.row.state

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def front(self) -> F | None:
        """What is in memory of it, if anything is."""
        return self._kept.front if self._kept else None

    @property
    def loaded(self) -> bool:
        """Whether there is an engine to ask."""
        return self.state in _IN_MEMORY

    @asynccontextmanager
    async def used(
        self, patience: float, keep_alive: float | None = None, tell: Tell | None = None
    ) -> AsyncIterator[F]:
        """For one request, once the model takes it; raises ModelNotReady when that takes longer than its patience, and
        ModelFailed. `tell` is awaited now and then while it takes long. From the moment in which the model is granted
        to the end of the block the request counts as running, so that its owner never sees a gap between.
        """
        if self.row.state.takes_requests:
            self.running += 1
        else:
            await self._wait(patience, tell)
        # As with Ollama the last request decides, and one that says nothing asks for what is usual.
        self.keep_alive = keep_alive
        self._directory.demanded()
        try:
            async with self.held() as front:
                yield front
        finally:
            self.running -= 1
            self.served += 1
            self._directory.demanded()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[F]:
        """In memory for as long as the block lasts, whether it is loaded or not."""
        kept = self._kept or self._keep()
        kept.holders += 1
        try:
            yield kept.front or await self._made(kept)
        finally:
            kept.holders -= 1
            self._let_go(kept)

    def keeps(self, front: F) -> bool:
        """Whether the model is still served by what a request was given of it."""
        return self._kept is not None and self._kept.front is front

    async def settled(self, states: frozenset[ModelState], patience: float) -> bool:
        """Whether it comes into one of the states in time; raises ModelFailed where it fails before."""
        clock = asyncio.get_running_loop().time
        began, failures = clock(), self._failures
        while self.state not in states:
            self._check_failure(began, failures)
            if clock() >= began + patience:
                return False
            await self._news(self._deadline(began, patience))
        return True

    async def _wait(self, patience: float, tell: Tell | None) -> None:
        """Ends with the request counted as running, in the same step in which it waits no more."""
        clock = asyncio.get_running_loop().time
        began, failures, number = clock(), self._failures, next(_numbers)
        tell_at = began + QUIET_SECONDS
        self._waiting[number] = began
        self._directory.demanded()
        try:
            while not self.row.state.takes_requests:
                self._check_failure(began, failures)
                if clock() >= began + patience:
                    raise ModelNotReady(self.row, patience)
                await self._news(min(self._deadline(began, patience), tell_at if tell else began + patience))
                if tell and clock() >= tell_at and not self.row.state.takes_requests:
                    await tell()
                    tell_at = clock() + _TELL_SECONDS
            self.running += 1
        finally:
            del self._waiting[number]
            self._directory.demanded()

    def _check_failure(self, began: float, failures: int) -> None:
        if not self._listed:
            raise UnknownModel(self.id, None)
        tried_again = self._failures != failures
        late = asyncio.get_running_loop().time() >= began + FAILED_SECONDS
        if self.state is ModelState.FAILED and (tried_again or late):
            raise ModelFailed(self.id, self.row.detail)

    def _deadline(self, began: float, patience: float) -> float:
        return began + (min(FAILED_SECONDS, patience) if self.state is ModelState.FAILED else patience)

    async def _news(self, deadline: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()

    def _keep(self) -> _Kept[F]:
        self._kept = _Kept(self.settings, None, self._directory.make)
        return self._kept

    async def _made(self, kept: _Kept[F]) -> F:
        try:
            front = await kept.get()
        except Exception as error:
            if self._kept is kept:
                self._kept = None
                log.warning("the tokenizer of %s cannot be used: %s", self.id, error)
            raise ModelFailed(self.id, f"its tokenizer cannot be used: {error}") from error
        if self.state is ModelState.READY:
            front.expect()
        return front

    def _let_go(self, kept: _Kept[F]) -> None:
        if kept.holders:
            return
        if kept is self._kept and not self.loaded:
            self._kept, kept.retired = None, True
        if kept.retired:
            self._directory.close_later(kept)

    def _retire(self, why: str | None) -> None:
        """What comes from now on gets another one. Whoever has this one goes on with it, for as long as its engine
        lasts; where that is gone, `why` says so."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        kept.retired = True
        if kept.front and why:
            kept.front.abandon(why)
        self._let_go(kept)

    def update(self, row: ModelRow, settings: ModelSettings) -> None:
        before, self.row, self._listed = self.row, row, True
        failed = row.state is ModelState.FAILED
        if failed and before.state is not ModelState.FAILED:
            self._failures += 1
        if before.state in _IN_MEMORY and not self.loaded:
            why = f"the model {self.id} has failed: {row.detail}" if failed else f"the model {self.id} was unloaded"
            self._retire(why)
            self.keep_alive = None
        renewed = settings != self.settings
        if renewed:
            self.settings = settings
            self._retire(None)
        # Once: what cannot be read is tried again for whoever asks.
        if row.state in _READ_AHEAD and (renewed or before.state is not row.state) and self._kept is None:
            self._read_ahead()
        if row.state is ModelState.READY:
            self.has_been_ready = True
            if before.state is not ModelState.READY and self.front:
                self.front.expect()
        self.wake()

    def _read_ahead(self) -> None:
        async def read() -> None:
            with contextlib.suppress(ModelFailed):  # the next that wants it is told
                async with self.held():
                    pass

        self._directory.start(read())

    def unlist(self) -> None:
        self.update(replace(self.row, state=ModelState.UNLOADED), self.settings)
        self._listed = False

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def demand(self, now: float) -> Demand | None:
        if not (self._waiting or self.running or self.served):
            return None
        oldest = now - next(iter(self._waiting.values())) if self._waiting else 0.0
        return Demand(self.id, len(self._waiting), oldest, self.running, self.served, self.keep_alive)


_numbers = itertools.count(1)


class Directory(Generic[F]):
    """`make` reads a model's files and is called in a thread; models that are given `ready` are in memory and have
    engines. The others are as the first table will say.
    """

    def __init__(
        self,
        make: Callable[[ModelSettings], F],
        models: Sequence[ModelSettings],
        fronts: Sequence[F] = (),
        *,
        ready: bool,
    ) -> None:
        self.make = make
        self.version = 0
        """Of the table that holds; 0: none has come."""
        self.pulls: tuple[PullRow, ...] = ()
        """What its owner fetches, or has fetched lately."""
        self.changed = asyncio.Event()
        """Set when there is something new to report."""
        self._applied = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        state = ModelState.READY if ready else ModelState.UNLOADED
        self._known = {
            settings.id: Model(self, ModelRow(settings.id, state, ""), settings, front)
            for settings, front in itertools.zip_longest(models, fronts)
        }
        """Also those that stand in no table any more, while they have requests."""
        self._list(tuple(self._known.values()))

    @property
    def default(self) -> Model[F]:
        return self.models[0]

    def find(self, name: str | None) -> Model[F]:
        """The model that a request means; raises UnknownModel where there is none of this name."""
        if name is None or name == DEFAULT:
            return self.models[0]
        found = self._names.get(name)
        if found is None:
            raise UnknownModel(name, nearest_name(name, self._names))
        return found

    def knows(self, name: str | None) -> bool:
        return name is None or name == DEFAULT or name in self._names

    async def listed(self, name: str) -> None:
        """Waits until a table has the model."""
        while not self.knows(name):
            await self._applied.wait()

    async def pulled(self, name: str, started_at: float, patience: float) -> PullRow | None:
        """The pull that was begun then, when it has ended or patience has; None where no table has it."""

        def row() -> PullRow | None:
            return next((pull for pull in self.pulls if (pull.name, pull.started_at) == (name, started_at)), None)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while (found := row()) is None or not found.ended:
                    await self._applied.wait()
        return row()

    def apply(self, table: Table) -> None:
        """From here on nothing is granted by an older table."""
        self.pulls = table.pulls
        listed = [model for row in table.models if (model := self._updated(row))]
        if not listed:
            log.error("the owner of the models has sent a table without any; the last one holds")
            return
        for model in set(self.models).difference(listed):
            model.unlist()
        self._known = {
            model.id: model for model in (*listed, *self._known.values()) if model in listed or model.running
        }
        self._list(tuple(listed))
        self.version = table.version
        self._applied.set()
        self._applied = asyncio.Event()
        self.demanded()

    def _updated(self, row: ModelRow) -> Model[F] | None:
        known = self._known.get(row.id)
        if known and known.row.settings == row.settings:
            known.update(row, known.settings)
            return known
        try:
            settings = ModelSettings.model_validate_json(row.settings)
        except ValidationError as error:
            log.error("what the owner of the models says of %s cannot be read: %s", row.id, error)
            return known
        if known is None:
            known = Model(self, replace(row, state=ModelState.UNLOADED), settings, None)
        known.update(row, settings)
        return known

    def _list(self, models: tuple[Model[F], ...]) -> None:
        self.models = models
        self._names: dict[str, Model[F]] = {}
        # An id goes over another model's alias, and the first of several that are called alike over the others.
        for model in models:
            self._names.setdefault(model.id, model)
        for model in models:
            for name in model.settings.names:
                self._names.setdefault(name, model)

    def demanded(self) -> None:
        self.changed.set()

    def report(self) -> Report:
        now = asyncio.get_running_loop().time()
        demands = (model.demand(now) for model in self._known.values())
        return Report(self.version, tuple(demand for demand in demands if demand))

    def start(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close_later(self, kept: _Kept[F]) -> None:
        async def close() -> None:
            await kept.close()
            kept.front = None
            # What parts of a model know each other by goes with this, and what the C library keeps of them with that.
            gc.collect()
            give_back_freed()

        self.start(close())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for model in self._known.values():
            if model.front:
                await model.front.close()
