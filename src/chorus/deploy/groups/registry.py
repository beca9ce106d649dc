"""All models of a server: their groups, who asks for them, and the loop that does what is decided."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chorus.config.front_end import ModelSettings
from chorus.config.served import LoadConfig, ModelConfig
from chorus.deploy.groups.booking import Books
from chorus.deploy.groups.decide import Decision, Standing, decide
from chorus.deploy.groups.group import Group, Loadable, Maker
from chorus.deploy.groups.pulls import Pulls
from chorus.deploy.room import HERE, Bytes, Need, Room, without
from chorus.deploy.supervisor import TooLittleRoom
from chorus.errors import ChorusError
from chorus.messages.deploy import Demand, ModelRow, ModelState, Report, Table, nearest_name
from chorus.models import Progress
from chorus.platform.memory.ledger import LedgerError, NoRoom
from chorus.platform.process.restarts import RestartPolicy
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger("chorus.models")

MOST_FRONT_ENDS = 64
"""Who may attend at once, those that only look too."""
MOST_FOUND = 64
"""Models that were found by their name and stand in no settings."""
NEWCOMER_SECONDS = 1.0
"""How long one that attends may be a front end that has not reported yet."""
FULL_SECONDS = 1.0
"""How often to look whether another server has made room."""


class Refused(ChorusError):
    """A model is not loaded or unloaded now: says why, with the figures."""


class NoSuchModel(ChorusError):
    """There is no model of this name; names the nearest."""


@dataclass(eq=False)
class Attendance:
    """One that attends: a front end from its first report on."""

    since: float
    report: Report | None = None
    only_looks: bool = False
    first_table: int = 0
    """The version that it was told first; 0: none yet."""

    def may_route_by_less(self, version: int, now: float) -> bool:
        """Whether it may still send requests by an older table than this."""
        if self.report is not None:
            return self.report.seen < version
        newcomer = not self.only_looks and now - self.since < NEWCOMER_SECONDS
        return newcomer and 0 < self.first_table < version

    def demand(self, model: str) -> Demand:
        demands = self.report.demands if self.report else ()
        return next((each for each in demands if each.id == model), Demand(model))


@dataclass
class Model:
    """One model of this server."""

    entry: ModelConfig
    number: int
    settings: ModelSettings
    lifetime: float | None
    loadable: Loadable | None = None
    state: ModelState = ModelState.UNLOADED
    detail: str = ""
    group: Group | None = None
    work: asyncio.Task[None] | None = None
    """Looks for it, or keeps its group."""
    booked: Bytes = field(default_factory=dict)
    """What was booked for it, or promised to it."""
    loads: int = 0
    began: float = 0.0
    """When its last load did."""
    loaded_at: float = 0.0
    ready_since: float = 0.0
    idle_since: float = 0.0
    keep_alive: float | None = None
    wanted_since: float | None = None
    gently: bool = False
    forced: bool = False
    failures: int = 0
    retry_at: float = 0.0
    drained_at: int = 0
    """The version of the table from which on it drains."""
    makes_room: bool = False
    ends: bool = False
    ending: bool = False
    """Whether its group was told to end: nothing brings that back."""
    tried_with: Bytes = field(default_factory=dict)
    """What was left when it was last loaded."""
    short: tuple[Need, ...] = ()
    """What must be left before it is tried again, where its plan did not fit; `unfit` says why."""
    unfit: str = ""
    found_by_name: bool = False
    pulled: Progress | None = None
    told: str = field(init=False, default="")
    """Its settings as front ends are told them."""

    def __post_init__(self) -> None:
        self.tell(self.settings)

    def tell(self, settings: ModelSettings) -> None:
        """The id stays what it was: that is how front ends know it."""
        more = () if settings.id == self.id else (settings.id,)
        self.settings = settings.model_copy(update={"id": self.id, "aliases": (*settings.aliases, *more)})
        self.told = self.settings.model_dump_json()

    @property
    def id(self) -> str:
        return self.settings.id

    @property
    def needs(self) -> tuple[Need, ...] | None:
        if self.loadable is None:
            return None
        return (*self.loadable.needs.wanted, *self.short) if self.loadable.needs else ()

    @property
    def held(self) -> Bytes:
        """What is booked for it, by its group where that books itself."""
        return (self.group.booked if self.group else {}) or self.booked

    @property
    def why_it_goes(self) -> str:
        """Of one whose group ends in order."""
        if self.state is not ModelState.DRAINING:
            return "its load was ended" if self.state is ModelState.LOADING else "the server stops"
        return "its room is needed" if self.makes_room else "asked to" if self.ends else "nobody asks for it"

    def stays(self) -> float | None:
        """How long it stays when it is idle."""
        if self.entry.pin:
            return self.entry.idle_unload
        return self.lifetime if self.keep_alive is None else self.keep_alive


class Registry:
    """Owns the models. With one that is `alone`, a failure of its group is one of the server."""

    def __init__(
        self,
        maker: Maker,
        policy: LoadConfig,
        ledger: Books | None = None,
        *,
        alone: bool = False,
        find_stored: Callable[[str], ModelConfig | None] | None = None,
        pauses: Sequence[float] = RestartPolicy().pauses,
    ) -> None:
        """`find_stored` finds a model by a name that stands in no settings, where those are served too."""
        self._maker = maker
        self._policy = policy
        self._ledger = ledger
        self._alone = alone
        self._find_stored = find_stored
        self._pauses = pauses
        self._models: dict[str, Model] = {}
        self._numbers = itertools.count()
        self._attending: set[Attendance] = set()
        self._version = 1
        self._table: Table | None = None
        self._news = asyncio.Event()
        self._poked = asyncio.Event()
        self._fatal: ChorusError | None = None
        self._deciding = asyncio.Lock()
        self._look_at: float | None = None
        self._ends = False
        self.pulls = Pulls(self._changed)

    # Which models there are

    def add(self, entry: ModelConfig, loadable: Loadable | None = None) -> Model:
        """Know a model from now on; raises Refused where another one is called the same."""
        number = next(self._numbers)
        settings = loadable.settings if loadable else self._maker.expected(entry, number)
        if (known := self._models.get(settings.id)) is not None:
            raise Refused(
                f"{entry.source} and {known.entry.source} are both called {settings.id}: leave one of them out"
            )
        return self._put(entry, number, settings, loadable)

    def _put(self, entry: ModelConfig, number: int, settings: ModelSettings, loadable: Loadable | None) -> Model:
        lifetime = self._policy.idle_unload if entry.idle_unload is None else entry.idle_unload
        model = self._models[settings.id] = Model(entry, number, settings, lifetime, loadable)
        self._changed()
        return model

    @property
    def preloaded(self) -> tuple[Model, ...]:
        """Those to be loaded when the server starts: as they say, or the first and the pinned ones."""
        if self._alone:
            return self.models
        usual = {model.id for model in self.models if model is self.models[0] or model.entry.pin}
        return tuple(m for m in self.models if (m.id in usual if m.entry.preload is None else m.entry.preload))

    def want_first(self, entries: Iterable[Model]) -> None:
        """Load these when the server starts, as far as they fit beside each other."""
        now = time.monotonic()
        for model in entries:
            model.wanted_since, model.gently = now, not self._alone
        self._poked.set()

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(self._models.values())

    def named(self, name: str) -> Model | None:
        """The model that is called so; an id goes over another model's alias."""
        if model := self._models.get(name):
            return model
        return next((model for model in self._models.values() if name in model.settings.names), None)

    async def find(self, name: str) -> Model:
        """Also one of those that this machine has, where they are served; raises NoSuchModel."""
        if model := self.named(name):
            return model
        entry = await asyncio.to_thread(self._find_stored, name) if self._find_stored else None
        if model := self.named(name):  # somebody else was faster
            return model
        if entry is None:
            raise NoSuchModel(f"there is no model {name[:200]!r}{self._nearest(name)}")
        number = next(self._numbers)
        settings = await asyncio.to_thread(self._maker.expected, entry, number)
        if model := self._models.get(settings.id):
            return model
        self._forget_found()
        model = self._put(entry, number, settings, None)
        model.found_by_name = True
        return model

    def _nearest(self, name: str) -> str:
        found = nearest_name(name, (each for model in self.models for each in model.settings.names))
        return f"; did you mean {found!r}?" if found else ""

    def _forget_found(self) -> None:
        """Make room for one more that was found by its name: the one that was unused longest goes."""
        found = [model for model in self.models if model.found_by_name]
        if len(found) < MOST_FOUND:
            return
        unused = [m for m in found if m.state in (ModelState.UNLOADED, ModelState.FAILED) and m.work is None]
        if not unused:
            raise Refused(f"{len(found)} models were found by their name already, and all are used")
        del self._models[min(unused, key=lambda model: model.idle_since).id]

    # What commands ask for

    async def load(self, name: str, force: bool = False) -> tuple[str, str]:
        """Which model is loaded, and what was decided; raises NoSuchModel, Refused."""
        model = await self.find(name)
        if self._ends:
            raise Refused("the server ends: nothing is loaded any more")
        if model.state in (ModelState.LOADING, ModelState.READY) and not model.ending:
            return model.id, f"{model.id} is {model.state.name.lower()}"
        if model.state is ModelState.DRAINING and not model.makes_room and not model.ending:
            self._enter(model, ModelState.READY, "ready")
            return model.id, f"{model.id} is ready"
        model.wanted_since, model.gently, model.forced = time.monotonic(), False, force
        model.retry_at = 0.0
        if model.ending:
            return model.id, f"{model.id} is loaded again once its processes have ended"
        await self._step()
        if model.state is ModelState.FAILED:  # decided now, or by a step that was under way
            raise Refused(model.detail)
        return model.id, f"{model.id}: {model.detail or model.state.name.lower()}"

    async def unload(self, name: str) -> tuple[str, str]:
        """Which model goes, and when; raises NoSuchModel."""
        model = self.named(name)
        if model is None:
            raise NoSuchModel(f"there is no model {name[:200]!r}{self._nearest(name)}")
        model.wanted_since, model.forced = None, False
        if model.state is ModelState.READY:
            self._drain(model, ends=True)
        elif model.state is ModelState.DRAINING:
            model.ends = True
        elif model.state is ModelState.LOADING:
            self._end(model)
            return model.id, f"the load of {model.id} is ended"
        else:
            return model.id, f"{model.id} is not loaded"
        await self._step()
        running = self._demand(model).running
        return model.id, f"{model.id} is unloaded{f' when {running} running requests are over' if running else ''}"

    # What front ends see and say

    @property
    def table(self) -> Table:
        if self._table is None:
            now = time.monotonic()
            self._table = Table(self._version, tuple(self._row(model, now) for model in self.models), self.pulls.rows)
        return self._table

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[Attendance]:
        """For as long as somebody attends; raises Refused."""
        if len(self._attending) >= MOST_FRONT_ENDS:
            raise Refused(f"{len(self._attending)} attend already, the most there may be")
        attendance = Attendance(time.monotonic())
        self._attending.add(attendance)
        try:
            yield attendance
        finally:
            self._attending.discard(attendance)
            for demand in attendance.report.demands if attendance.report else ():
                if model := self._models.get(demand.id):
                    model.idle_since = time.monotonic()
            self._poked.set()

    async def newer(self, version: int) -> Table:
        """The table, once it is another than this one."""
        while self._version <= version:
            await self._news.wait()
        return self.table

    def heard(self, attendance: Attendance, report: Report) -> None:
        """What a front end is asked for, and by which table it routes."""
        now = time.monotonic()
        known = tuple(demand for demand in report.demands if demand.id in self._models)
        went_at = {demand.id: self._standing(self._models[demand.id], now).goes_at for demand in known}
        before, attendance.report = attendance.report, Report(report.seen, known)
        for demand in known:
            last = next((each for each in before.demands if each.id == demand.id), None) if before else None
            used = demand.waiting or demand.running or (last and (last.waiting or last.running))
            if used or demand.served != (last.served if last else 0):
                model = self._models[demand.id]
                model.idle_since, model.keep_alive = now, demand.keep_alive_seconds
                if self._standing(model, now).goes_at != went_at[demand.id]:
                    self._changed()
        self._poked.set()

    def _demand(self, model: Model) -> Demand:
        """Of all front ends together."""
        each = [attendance.demand(model.id) for attendance in self._attending]
        return Demand(
            model.id,
            sum(demand.waiting for demand in each),
            max((demand.oldest_seconds for demand in each if demand.waiting), default=0.0),
            sum(demand.running for demand in each),
        )

    # What is decided, and done

    async def run(self) -> None:
        """Decide and act until cancelled; raises what ends the server."""
        while True:
            self._poked.clear()
            await self._step()
            if self._fatal:
                raise self._fatal
            wait = None if self._look_at is None else max(0.0, self._look_at - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._poked.wait()

    def will_end(self) -> None:
        """The server ends: nothing is looked for, loaded or swapped any more, and what is lost stays lost."""
        self._ends = True
        for model in self.models:
            if model.group:
                model.group.will_end()
            elif model.work:
                model.work.cancel()

    async def stop(self) -> None:
        """End all groups."""
        works = [model.work for model in self.models if model.work]
        for model in self.models:
            if model.group:
                model.group.end()
            elif model.work:
                model.work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    @property
    def settled(self) -> bool:
        """Whether all that was to be loaded at the start is there, or will not be."""
        moving = (ModelState.WAITING, ModelState.LOADING)
        return not any(model.wanted_since is not None or model.state in moving for model in self.models)

    async def _step(self) -> Decision:
        """Decide once and do it."""
        async with self._deciding:
            room = await self._room()
            if self._ends:
                return Decision()
            now = time.monotonic()
            decision = decide([self._standing(model, now) for model in self.models], room, self._policy, now)
            left = room.free
            for model in map(self._models.__getitem__, decision.load):
                model.tried_with, left = left, without(left, model.needs or ())
            self._act(decision, now)
            # Only now: one of them may be wanted again.
            looks = [self._end_drained(now), decision.look_at, now + FULL_SECONDS if decision.wait else None]
            self._look_at = min((moment for moment in looks if moment is not None), default=None)
            return decision

    async def _room(self) -> Room:
        """Looked at only where somebody wants a part."""
        if (
            self._ledger is None
            or self._alone
            or not any(model.needs and self._is_asked(model) for model in self.models)
        ):
            return Room()
        try:
            return await asyncio.to_thread(self._ledger.room)
        except LedgerError as error:
            for model in self.models:
                if model.needs and model.work is None and self._is_asked(model):
                    self._fail(model, str(error))
            return Room()

    def _standing(self, model: Model, now: float) -> Standing:
        demand = self._demand(model)
        return Standing(
            model.id,
            model.state,
            model.needs,
            model.held,
            demand.waiting,
            now - demand.oldest_seconds,
            demand.running,
            model.idle_since,
            model.ready_since,
            model.entry.pin,
            model.stays(),
            model.wanted_since,
            model.gently,
            model.forced or self._alone,
            model.retry_at,
            model.makes_room,
            model.ends or model.ending,
            model.unfit,
        )

    def _act(self, decision: Decision, now: float) -> None:
        for model in map(self._models.__getitem__, decision.find):
            if model.work is None:
                self._enter(model, ModelState.WAITING, "is looked for")
                model.work = asyncio.create_task(self._find_files(model))
        for model in map(self._models.__getitem__, decision.load):
            if model.work is None:
                model.ending = False
                self._enter(model, ModelState.LOADING, "starting the engine")
                model.work = asyncio.create_task(self._live(model))
        for model in map(self._models.__getitem__, decision.make_room):
            tell(events.MODEL_SWAPPED, model=model.id, other=" and ".join(decision.wait))
            self._drain(model, makes_room=True)
        for model in map(self._models.__getitem__, decision.go_idle):
            log.info("%s is unloaded: nobody has asked for it for %.0f s", model.id, now - model.idle_since)
            self._drain(model)
        for model in map(self._models.__getitem__, decision.keep):
            self._enter(model, ModelState.READY, "ready")
        for name, why in decision.refuse.items():
            self._fail(self._models[name], why, refused=True)
        for name, why in decision.wait.items():
            self._enter(self._models[name], ModelState.WAITING, why)
        for model in self.models:
            if model.state is ModelState.WAITING and model.work is None and not self._is_asked(model):
                self._enter(model, ModelState.UNLOADED)

    def _is_asked(self, model: Model) -> bool:
        return model.wanted_since is not None or self._demand(model).waiting > 0

    def _drain(self, model: Model, makes_room: bool = False, ends: bool = False) -> None:
        model.makes_room, model.ends = makes_room, ends
        self._enter(model, ModelState.DRAINING, "makes room for another" if makes_room else "is unloaded")
        model.drained_at = self._version

    def _end_drained(self, now: float) -> float | None:
        """End the groups of those that nobody uses any more, nor could by an older table. Answers when to look."""
        look_at = None
        for model in self.models:
            if model.state is not ModelState.DRAINING or model.group is None or self._demand(model).running:
                continue
            late = [each for each in self._attending if each.may_route_by_less(model.drained_at, now)]
            if not late:
                self._end(model)
            elif any(each.report is None for each in late):
                look_at = now + NEWCOMER_SECONDS
        return look_at

    def _end(self, model: Model) -> None:
        """Of one that is loaded, or whose room is just being booked."""
        model.ending = True
        if model.group:
            model.group.end()

    async def _find_files(self, model: Model) -> None:
        def report(progress: Progress) -> None:
            model.pulled, model.detail = progress, progress.label
            self._changed()

        try:
            found = await self._maker.find(model.entry, model.number, report)
            model.loadable = found
            model.tell(found.settings)
        except ChorusError as error:
            self._fail(model, str(error), error)
        except Exception as error:
            log.exception("%s cannot be looked for", model.id)
            self._fail(model, f"{type(error).__name__}: {error}")
        finally:
            model.pulled, model.work = None, None
            self._changed()
            self._poked.set()

    async def _live(self, model: Model) -> None:
        """One load of a model, from its booking to the end of its last process."""
        assert model.loadable is not None
        failure: ChorusError | None = None
        try:
            await self._book(model, model.loadable)
            model.group = Group(
                model.loadable, model.booked.get(HERE, 0), "" if self._alone else model.id, lambda: self._watched(model)
            )
            if model.ending:
                model.group.end()
            model.loads += 1
            model.began = time.monotonic()
            tell(events.MODEL_LOADING, model=model.id, ranks=model.loadable.ranks)
            await model.group.run()
        except NoRoom:
            log.info("%s waits: another server has taken the room", model.id)
        except TooLittleRoom as error:
            if self._alone or model.forced:
                failure = error
            else:
                log.info("%s does not fit as it is now: %s", model.id, error)
                model.short = tuple(need.more_than(model.tried_with) for need in error.missing)
                model.unfit = str(error)
        except ChorusError as error:
            failure = error
        except Exception as error:
            log.exception("the group of %s has failed", model.id)
            failure = Refused(f"{type(error).__name__}: {error}")
        finally:
            await self._release(model)
            self._maker.clear(model.number)
            if model.group and not failure and not model.unfit:
                tell(events.MODEL_UNLOADED, model=model.id, why=model.why_it_goes)
            model.group, model.work, model.ending = None, None, False
            model.idle_since, model.loaded_at, model.keep_alive = time.monotonic(), 0.0, None
            if failure:
                self._fail(model, str(failure), failure)
            elif model.unfit and self._is_asked(model):
                self._enter(model, ModelState.WAITING, model.unfit)
            else:
                self._enter(model, ModelState.UNLOADED)
            self._poked.set()

    def _watched(self, model: Model) -> None:
        group = model.group
        assert group is not None
        if model.state is ModelState.LOADING:
            model.detail = group.detail
        if group.ready and model.state is ModelState.LOADING and not model.ending:
            model.ready_since = model.idle_since = time.monotonic()
            model.loaded_at, model.failures = time.time(), 0
            model.wanted_since, model.forced = None, False
            model.short, model.unfit = (), ""
            self._enter(model, ModelState.READY, group.detail)
            tell(events.MODEL_READY, model=model.id, seconds=model.ready_since - model.began)
            self._poked.set()
        self._changed()

    async def _book(self, model: Model, loadable: Loadable) -> None:
        """Raises NoRoom, LedgerError."""
        needs, ledger = loadable.needs, self._ledger
        if needs is None or ledger is None:
            return

        def book() -> int:
            amount = needs.of(ledger.room().free, self._alone)
            return ledger.book(model.id, amount, model.id, force=model.forced or self._alone).amount

        try:
            booked = await asyncio.to_thread(book)
            model.booked = {HERE: booked, **needs.booked_elsewhere(booked)}
        except LedgerError as error:
            if not self._alone:
                raise
            log.warning("%s", error)  # one model alone needs nobody's permission

    async def _release(self, model: Model) -> None:
        if model.booked and self._ledger:
            try:
                await asyncio.to_thread(self._ledger.release, model.id)
            except LedgerError as error:
                log.warning("%s", error)
        model.booked = {}

    def _fail(self, model: Model, why: str, error: ChorusError | None = None, refused: bool = False) -> None:
        """It is tried again when it is asked for: after a refusal soon, after a failure ever later."""
        if self._alone and error:
            self._fatal = error
        pause = self._pauses[0] if refused else self._pauses[min(model.failures, len(self._pauses) - 1)]
        model.failures += not refused
        model.wanted_since, model.forced = None, False
        model.short, model.unfit = (), ""
        if not model.settings.path.exists():  # removed since, or pulled anew under another name
            model.loadable = None
        model.retry_at = time.monotonic() + pause
        if not self._alone:
            log.warning("%s", why if model.id in why else f"{model.id}: {why}")
        tell(events.MODEL_REFUSED if refused else events.MODEL_FAILED, model=model.id, why=why)
        self._enter(model, ModelState.FAILED, why)

    def _enter(self, model: Model, state: ModelState, detail: str = "") -> None:
        if (model.state, model.detail) != (state, detail):
            if model.state is not state:
                log.debug("%s is %s: %s", model.id, state.name.lower(), detail)
            model.state, model.detail = state, detail
            self._changed()

    def _changed(self) -> None:
        """Everybody who looks is told."""
        self._version += 1
        self._table = None
        self._news.set()
        self._news = asyncio.Event()

    def _row(self, model: Model, now: float) -> ModelRow:
        group, pulled, loadable = model.group, model.pulled, model.loadable
        goes_at = self._standing(model, now).goes_at
        done, total = (group.loaded_bytes, group.total_bytes) if group else (0, 0)
        nodes = group.nodes if group else ()
        if pulled:
            done, total = pulled.done, pulled.total or 0
        return ModelRow(
            model.id,
            model.state,
            model.told,
            model.detail,
            group.progress if group else done / total if total else 0.0,
            done,
            total,
            sum(model.held.values()) or (loadable.needs.least if loadable and loadable.needs else 0),
            len(nodes) or (loadable.ranks if loadable else 0),
            nodes or (loadable.nodes if loadable else ()),
            model.entry.pin,
            time.time() + goes_at - now if goes_at is not None else 0.0,
            model.loaded_at,
            model.loads,
        )
