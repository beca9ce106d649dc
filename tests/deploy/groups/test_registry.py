"""The owner of all models, with groups that do as they are told: what front ends see, and when a group ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chorus.config.front_end import ModelSettings
from chorus.config.served import LoadConfig, ModelConfig
from chorus.deploy.groups import registry as module
from chorus.deploy.groups.booking import Needs, OneMachine
from chorus.deploy.groups.group import Loadable, Report
from chorus.deploy.groups.registry import Attendance, Model, NoSuchModel, Refused, Registry
from chorus.deploy.room import HERE, Need
from chorus.deploy.supervisor import GaveUp, TooLittleRoom
from chorus.messages.deploy import Demand, ModelState
from chorus.messages.deploy import Report as Told
from chorus.models import ModelError, Progress
from chorus.platform.memory.ledger import Ledger

DEADLINE = 60.0
MB = 1 << 20


class Scripted:
    """A group that loads, serves and fails when the test says so."""

    started: list[Scripted]

    def __init__(self, loadable: Loadable, booked: int, label: str, changed: Callable[[], None]) -> None:
        self.id = loadable.settings.id
        self.given = booked
        self.booked: dict[str, int] = {}
        self.changed = changed
        self.detail, self.ready, self.progress = "loading", False, 0.5
        self.loaded_bytes, self.total_bytes = 1, 2
        self.nodes: tuple[str, ...] = ()
        self.last = False
        self.gone = asyncio.Event()
        """Set: its processes end at once when it is told to."""
        self.gone.set()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        Scripted.started.append(self)

    async def run(self) -> None:
        await self.over
        await self.gone.wait()

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def will_end(self) -> None:
        self.last = True

    def serves(self) -> None:
        self.detail, self.ready = "ready", True
        self.changed()

    def gives_up(self, why: str) -> None:
        self.over.set_exception(GaveUp(why))

    def does_not_fit(self, why: str, *missing: Need) -> None:
        self.over.set_exception(TooLittleRoom(why, missing))


class Maker:
    """Models of these sizes, in MB; one without a size cannot be found."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.looks: list[str] = []
        self.files = Path("/")
        """Of whatever is found."""
        self.cleared: list[int] = []
        self.hub = asyncio.Event()
        """Answers once this is set."""
        self.hub.set()

    def expected(self, entry: ModelConfig, number: int) -> ModelSettings:
        name = entry.source
        address = f"unix:/{number}/engine.sock"
        return ModelSettings(engine_address=address, id=name, name=name, path=self.files, aliases=entry.aliases)

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        self.looks.append(entry.source)
        report(Progress("downloading", 1, 4))
        await asyncio.sleep(0)
        await self.hub.wait()
        if entry.source not in self.sizes:
            raise ModelError(f"there is no {entry.source}")
        needs = Needs(1, self.sizes[entry.source] * MB, 0)
        return Loadable(self.expected(entry, number), 1, lambda booked: pytest.fail("no process"), needs)

    def clear(self, number: int) -> None:
        self.cleared.append(number)


class Owned:
    """A registry that runs, and one front end."""

    def __init__(self, registry: Registry, maker: Maker, ledger: Ledger, models: list[Model]) -> None:
        self.registry = registry
        self.maker = maker
        self.ledger = ledger
        self.models = {model.id: model for model in models}
        self.seen: Attendance | None = None

    def state(self, name: str) -> ModelState:
        return next(row.state for row in self.registry.table.models if row.id == name)

    def reports(self, *demands: Demand, seen: int | None = None, by: Attendance | None = None) -> None:
        """By default by the present table."""
        who = by or self.seen
        assert who is not None
        self.registry.heard(who, Told(self.registry.table.version if seen is None else seen, demands))

    async def until(self, name: str, state: ModelState) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.state(name) is not state:
                await asyncio.sleep(0.001)

    async def group(self, name: str) -> Scripted:
        """The one that runs, once there is one."""
        async with asyncio.timeout(DEADLINE):
            while not (found := [each for each in Scripted.started if each.id == name and not each.over.done()]):
                await asyncio.sleep(0.001)
        return found[-1]

    async def load(self, name: str) -> Scripted:
        await self.registry.load(name)
        group = await self.group(name)
        group.serves()
        await self.until(name, ModelState.READY)
        return group


@pytest.fixture
def owning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(module, "Group", Scripted)
    monkeypatch.setattr(module, "FULL_SECONDS", 0.01)
    monkeypatch.setattr("chorus.deploy.groups.decide.REST_SECONDS", 0.0)
    Scripted.started = []

    def own(
        act: Callable[[Owned], Coroutine[Any, Any, None]],
        *,
        budget: int = 10,
        policy: LoadConfig | None = None,
        entries: tuple[ModelConfig, ...] | None = None,
        sizes: dict[str, int] | None = None,
        **more: Any,
    ) -> None:
        async def run() -> None:
            maker = Maker(**(sizes or {"a": 6, "b": 6, "c": 3}))
            ledger = Ledger(tmp_path / "ledger.json", budget * MB)
            registry = Registry(maker, policy or LoadConfig(), OneMachine(ledger), pauses=(0.05, 0.1), **more)
            models = [registry.add(entry) for entry in entries or [ModelConfig(source=name) for name in maker.sizes]]
            owned = Owned(registry, maker, ledger, models)
            running = asyncio.create_task(registry.run())
            try:
                async with registry.attended() as owned.seen:
                    await act(owned)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await registry.stop()
            assert ledger.bookings() == ()

        asyncio.run(run())

    return own


def test_a_model_is_looked_for_booked_and_loaded_when_it_is_asked_for(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        assert owned.state("a") is ModelState.UNLOADED
        owned.reports(Demand("a", waiting=1))
        group = await owned.group("a")
        assert owned.state("a") is ModelState.LOADING
        assert [booking.amount for booking in owned.ledger.bookings()] == [6 * MB] == [group.given]
        group.serves()
        await owned.until("a", ModelState.READY)
        row = owned.registry.table.models[0]
        assert (row.loads, row.booked_bytes, row.loaded_at > 0) == (1, 6 * MB, True)
        assert owned.maker.looks == ["a"]

    owning(act)


def test_a_table_is_new_whenever_something_changed(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        version = owned.registry.table.version
        newer = asyncio.create_task(owned.registry.newer(version))
        await asyncio.sleep(0)
        assert not newer.done()
        owned.reports(Demand("a", waiting=1))
        async with asyncio.timeout(DEADLINE):
            table = await newer
        assert table.version > version
        assert (await owned.registry.newer(0)).version >= table.version

    owning(act)


def test_a_victim_ends_when_all_front_ends_know_that_it_drains_and_its_last_request_is_over(
    owning: Callable[..., None],
) -> None:
    async def act(owned: Owned) -> None:
        victim = await owned.load("a")
        before = owned.registry.table.version
        async with owned.registry.attended() as other:
            running = Demand("a", running=1)
            owned.reports(running, by=other)
            owned.reports(running, Demand("b", waiting=1))
            await owned.until("a", ModelState.DRAINING)
            drained = owned.registry.table.version
            assert drained > before
            owned.reports(Demand("a", served=1), Demand("b", waiting=1), seen=drained)
            owned.reports(Demand("a", served=1), by=other, seen=before)
            await some_steps()
            assert not victim.over.done(), "another front end may send requests by its older table"
            owned.reports(running, by=other, seen=drained)
            await some_steps()
            assert not victim.over.done(), "another front end has a request there"
            owned.reports(Demand("a", served=1), by=other, seen=drained)
            async with asyncio.timeout(DEADLINE):
                await victim.over
            await owned.group("b")
            assert [booking.what for booking in owned.ledger.bookings()] == ["b"]

    owning(act, policy=LoadConfig(min_loaded_seconds=0))


def test_a_front_end_that_is_gone_keeps_nothing_from_ending(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        victim = await owned.load("a")
        async with owned.registry.attended() as other:
            owned.reports(Demand("a", running=1), by=other)
            await owned.registry.unload("a")
            owned.reports()
            await some_steps()
            assert not victim.over.done()
        async with asyncio.timeout(DEADLINE):
            await victim.over
        await owned.until("a", ModelState.UNLOADED)

    owning(act)


def test_one_that_has_just_come_is_given_time_to_report(
    owning: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NEWCOMER_SECONDS", DEADLINE)

    async def act(owned: Owned) -> None:
        victim = await owned.load("a")
        owned.reports()
        async with owned.registry.attended() as newcomer:
            newcomer.first_table = owned.registry.table.version
            await owned.registry.unload("a")
            owned.reports()
            await some_steps()
            assert not victim.over.done()
            newcomer.only_looks = True
            owned.reports()
            async with asyncio.timeout(DEADLINE):
                await victim.over

    owning(act)


def test_a_group_that_gives_up_fails_alone_and_is_tried_again_on_demand(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("c")
        await owned.registry.load("a")
        (await owned.group("a")).gives_up("rank 1 ended 8 times in a row")
        await owned.until("a", ModelState.FAILED)
        row = owned.registry.table.models[0]
        assert row.detail == "rank 1 ended 8 times in a row"
        assert (owned.state("c"), row.loads) == (ModelState.READY, 1)
        owned.reports(Demand("a", waiting=1))
        group = await owned.group("a")
        group.serves()
        await owned.until("a", ModelState.READY)

    owning(act)


def test_a_model_whose_plan_does_not_fit_takes_the_place_of_another(owning: Callable[..., None]) -> None:
    """Over nodes: the sum of what is left would do, and yet no machine has room for its part."""

    async def act(owned: Owned) -> None:
        await owned.load("a")
        owned.reports(Demand("c", waiting=1))
        (await owned.group("c")).does_not_fit("needs 2 MiB more memory on mini", Need(2 * MB))
        await owned.until("a", ModelState.DRAINING)
        owned.reports(Demand("c", waiting=1))
        await owned.until("a", ModelState.UNLOADED)
        (await owned.group("c")).serves()
        await owned.until("c", ModelState.READY)

    owning(act, policy=LoadConfig(min_loaded_seconds=0))


def test_a_model_whose_plan_does_not_fit_and_for_whom_nobody_goes_is_refused_with_the_plans_words(
    owning: Callable[..., None],
) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("a")
        await owned.registry.load("c")
        (await owned.group("c")).does_not_fit("needs 2 MiB more memory on mini", Need(2 * MB))
        await owned.until("c", ModelState.FAILED)
        detail = next(row.detail for row in owned.registry.table.models if row.id == "c")
        assert detail == (
            "no room for c: needs 2 MiB more memory on mini (4 MiB of 10 MiB are left, taken by a 6 MiB (pinned))"
        )
        assert owned.state("a") is ModelState.READY
        # What has become of the nodes meanwhile nobody knows: it is planned again when it is asked for again.
        await owned.registry.load("c")
        (await owned.group("c")).serves()
        await owned.until("c", ModelState.READY)

    owning(act, entries=(ModelConfig(source="a", pin=True), ModelConfig(source="c")))


def test_a_group_that_books_itself_is_shown_with_its_machines_and_what_it_holds(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        group = await owned.load("c")
        group.nodes, group.booked = ("studio", "mini"), {HERE: 2 * MB, "mini": 3 * MB}
        group.changed()
        row = next(row for row in owned.registry.table.models if row.id == "c")
        assert (row.nodes, row.ranks, row.booked_bytes) == (("studio", "mini"), 2, 5 * MB)

    owning(act)


def test_a_model_that_cannot_be_found_fails_with_its_reason(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        owned.reports(Demand("nobody", waiting=1))
        await owned.until("nobody", ModelState.FAILED)
        assert owned.registry.table.models[1].detail == "there is no nobody"

    owning(act, entries=(ModelConfig(source="a"), ModelConfig(source="nobody")))


def test_the_only_model_ends_the_server_when_it_gives_up(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        owned.registry.want_first(owned.models.values())
        other = asyncio.create_task(owned.registry.run())
        (await owned.group("a")).gives_up("it cannot start")
        with pytest.raises(GaveUp, match="it cannot start"):
            async with asyncio.timeout(DEADLINE):
                await other

    owning(act, alone=True, entries=(ModelConfig(source="a"),))


def test_the_only_model_is_booked_what_it_needs_whether_that_fits_or_not(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        owned.registry.want_first(owned.models.values())
        assert (await owned.group("a")).given == 6 * MB

    owning(act, alone=True, entries=(ModelConfig(source="a"),))
    Scripted.started.clear()

    async def full(owned: Owned) -> None:
        owned.registry.want_first(owned.models.values())
        assert (await owned.group("a")).given == 6 * MB

    owning(full, alone=True, entries=(ModelConfig(source="a"),), budget=5)


def test_what_is_wanted_at_the_start_is_loaded_as_far_as_it_fits(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        owned.registry.want_first(owned.models.values())
        assert not owned.registry.settled
        (await owned.group("a")).serves()
        (await owned.group("c")).serves()
        await owned.until("b", ModelState.FAILED)
        async with asyncio.timeout(DEADLINE):
            while not owned.registry.settled:
                await asyncio.sleep(0.001)
        assert "it needs 6 MiB" in owned.registry.table.models[1].detail

    owning(act)


def test_a_command_is_refused_with_the_figures_unless_it_insists(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("a")
        with pytest.raises(Refused, match=r"it needs 6 MiB, and 4 MiB of 10 MiB are left, taken by a 6 MiB \(pinned\)"):
            await refused_once_found(owned, "b")
        await owned.registry.load("b", force=True)
        assert (await owned.group("b")).given == 6 * MB

    pinned = ModelConfig(source="a", pin=True)
    owning(act, entries=(pinned, ModelConfig(source="b")))


async def refused_once_found(owned: Owned, name: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            await owned.registry.load(name)
            await asyncio.sleep(0.01)


def test_an_idle_model_goes_and_the_last_request_says_when(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        group = await owned.load("a")
        owned.reports(Demand("a", running=1, keep_alive_seconds=0))
        await some_steps()
        assert not group.over.done(), "it has a request"
        owned.reports(Demand("a", served=1, keep_alive_seconds=0))
        await owned.until("a", ModelState.DRAINING)
        owned.reports(Demand("a", served=1))
        async with asyncio.timeout(DEADLINE):
            await group.over
        stays = await owned.load("c")
        owned.reports(Demand("c", served=1, keep_alive_seconds=-1))
        assert owned.registry.table.models[2].until == 0.0
        owned.reports(Demand("c", served=2, keep_alive_seconds=300))
        assert owned.registry.table.models[2].until > 1e9
        assert not stays.over.done()

    owning(act)


async def drained(owned: Owned) -> Scripted:
    """A group that goes since nobody has asked for it; its front end does not know yet, and its end takes a while."""
    group = await owned.load("a")
    group.gone.clear()
    owned.reports(Demand("a", served=1, keep_alive_seconds=0))
    await owned.until("a", ModelState.DRAINING)
    return group


def test_one_that_drains_and_is_asked_for_again_before_it_was_ended_stays(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        group = await drained(owned)
        owned.reports(Demand("a", served=1, waiting=1))
        await owned.until("a", ModelState.READY)
        await some_steps()
        assert not group.over.done()
        group.gone.set()

    owning(act)


@pytest.mark.parametrize("commanded", [False, True])
def test_one_that_was_ended_is_not_ready_again_but_loaded_anew(owning: Callable[..., None], commanded: bool) -> None:
    async def act(owned: Owned) -> None:
        group = await drained(owned)
        owned.reports(Demand("a", served=1))
        async with asyncio.timeout(DEADLINE):
            await group.over
        if commanded:
            assert "loaded again once its processes have ended" in (await owned.registry.load("a"))[1]
        else:
            owned.reports(Demand("a", served=1, waiting=1))
        await some_steps()
        assert owned.state("a") is ModelState.DRAINING
        group.gone.set()
        again = await owned.group("a")
        again.serves()
        await owned.until("a", ModelState.READY)
        assert Scripted.started == [group, again]

    owning(act)


def test_all_who_ask_for_what_is_refused_are_told(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("a")
        with pytest.raises(Refused):
            await refused_once_found(owned, "b")
        told = await asyncio.gather(*(owned.registry.load("b") for _ in range(3)), return_exceptions=True)
        assert ["it needs 6 MiB" in str(each) for each in told if isinstance(each, Refused)] == [True] * 3

    owning(act, entries=(ModelConfig(source="a", pin=True), ModelConfig(source="b")))


def test_a_pinned_model_stays_whatever_a_request_says(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        group = await owned.load("a")
        owned.reports(Demand("a", served=1, keep_alive_seconds=0))
        await some_steps()
        assert owned.state("a") is ModelState.READY
        assert not group.over.done()

    owning(act, policy=LoadConfig(idle_unload=0.0), entries=(ModelConfig(source="a", pin=True),))


def test_a_load_can_be_called_off(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.registry.load("a")
        group = await owned.group("a")
        _, told = await owned.registry.unload("a")
        assert told == "the load of a is ended"
        async with asyncio.timeout(DEADLINE):
            await group.over
        await owned.until("a", ModelState.UNLOADED)
        assert (await owned.registry.unload("a"))[1] == "a is not loaded"

    owning(act)


def test_a_load_that_was_forced_and_called_off_is_not_forced_the_next_time(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("a")
        await owned.registry.load("b", force=True)
        group = await owned.group("b")
        await owned.registry.unload("b")
        await group.over
        await owned.until("b", ModelState.UNLOADED)
        with pytest.raises(Refused, match="no room for b"):
            await refused_once_found(owned, "b")

    owning(act, entries=(ModelConfig(source="a", pin=True), ModelConfig(source="b")))


def test_a_model_whose_files_have_gone_is_looked_for_again(owning: Callable[..., None], tmp_path: Path) -> None:
    async def act(owned: Owned) -> None:
        async def fails() -> None:
            await owned.registry.load("a")
            (await owned.group("a")).gives_up("it cannot be read")
            await owned.until("a", ModelState.FAILED)

        owned.maker.files = tmp_path / "found"
        owned.maker.files.mkdir()
        await fails()
        await fails()
        assert owned.maker.looks == ["a"]
        owned.maker.files.rmdir()
        await fails()
        await fails()
        assert owned.maker.looks == ["a", "a"]

    owning(act)


def test_a_request_that_runs_is_news_only_when_it_begins_and_when_it_is_over(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.load("a")
        owned.reports(Demand("a", served=1))
        assert owned.registry.table.models[0].until > 0
        owned.reports(Demand("a", running=1, served=1))
        assert owned.registry.table.models[0].until == 0
        version = owned.registry.table.version
        for _ in range(5):
            owned.reports(Demand("a", running=1, served=1))
        assert owned.registry.table.version == version
        owned.reports(Demand("a", served=2))
        assert owned.registry.table.models[0].until > 0

    owning(act, policy=LoadConfig(idle_unload=300))


def test_a_load_that_was_called_off_can_be_asked_for_again(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        await owned.registry.load("a")
        group = await owned.group("a")
        group.gone.clear()
        await owned.registry.unload("a")
        group.serves()
        assert owned.state("a") is ModelState.LOADING, "it ends"
        await owned.registry.load("a")
        group.gone.set()
        assert await owned.group("a") is not group

    owning(act)


def test_a_server_that_ends_loads_and_swaps_nothing_and_its_groups_know(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        serves = await owned.load("a")
        owned.registry.will_end()
        assert serves.last
        owned.reports(Demand("b", waiting=1), Demand("c", waiting=1))
        with pytest.raises(Refused, match="the server ends: nothing is loaded any more"):
            await owned.registry.load("c")
        await some_steps()
        assert Scripted.started == [serves]
        assert (owned.state("a"), owned.maker.looks) == (ModelState.READY, ["a"])

    owning(act, policy=LoadConfig(min_loaded_seconds=0))


def test_a_server_that_ends_looks_for_nothing_any_more(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        owned.maker.hub = asyncio.Event()  # it does not answer
        await owned.registry.load("a")
        await owned.until("a", ModelState.WAITING)
        work = owned.models["a"].work
        assert work is not None
        owned.registry.will_end()
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait([work])
        assert Scripted.started == []

    owning(act)


def test_an_unknown_name_is_answered_with_the_nearest(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        for ask in (owned.registry.find, owned.registry.load, owned.registry.unload):
            with pytest.raises(NoSuchModel, match="there is no model 'corder'; did you mean 'coder'"):
                await ask(name="corder")
        assert (await owned.registry.find("coder")).id == "a"

    owning(act, entries=(ModelConfig(source="a", aliases=("coder",)), ModelConfig(source="b")))


def test_models_of_this_machine_are_found_by_name_and_forgotten_when_there_are_too_many(
    owning: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FOUND", 2)

    async def act(owned: Owned) -> None:
        for name in ("x", "y", "x", "z"):
            assert (await owned.registry.find(name)).id == name
        assert [row.id for row in owned.registry.table.models] == ["a", "y", "z"]

    stored = lambda name: ModelConfig(source=name) if name in "xyz" else None  # noqa: E731
    owning(act, entries=(ModelConfig(source="a"),), find_stored=stored)


def test_two_models_are_not_called_the_same(owning: Callable[..., None]) -> None:
    async def act(owned: Owned) -> None:
        with pytest.raises(Refused, match="are both called a"):
            owned.registry.add(ModelConfig(source="a"))

    owning(act)


def test_so_many_may_attend_and_no_more(owning: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FRONT_ENDS", 1)

    async def act(owned: Owned) -> None:
        with pytest.raises(Refused, match="1 attend already"):
            async with owned.registry.attended():
                pass

    owning(act)


async def some_steps() -> None:
    """Long enough for the registry to have looked at what it was told, several times."""
    for _ in range(5):
        await asyncio.to_thread(int)
        await asyncio.sleep(0.01)
