"""The directory of models without HTTP, sockets or files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chorus.config.front_end import ModelSettings
from chorus.messages.deploy import Demand, ModelRow, ModelState, Table, nearest_name
from chorus.serving.errors import ModelFailed, ModelNotReady, UnknownModel
from chorus.serving.models.directory import Directory, Model

A, B = "acme/a", "acme/b"
DEADLINE = 60.0


def settings(model_id: str, *aliases: str, address: str = "unix:/none") -> ModelSettings:
    name = model_id.rpartition("/")[2]
    return ModelSettings(engine_address=address, id=model_id, name=name, path=Path("/none"), aliases=aliases)


class Front:
    def __init__(self, settings: ModelSettings) -> None:
        if settings.path == Path("/broken"):
            raise ValueError("no tokenizer.json")
        self.settings = settings
        self.thread = threading.current_thread()
        self.expected = False
        self.abandoned = ""
        self.closed = asyncio.Event()

    def expect(self) -> None:
        self.expected = True

    def abandon(self, why: str) -> None:
        self.abandoned = why

    async def close(self) -> None:
        self.closed.set()


class Owner:
    """Hands the directory one table after the other."""

    def __init__(self, *models: ModelSettings) -> None:
        self.made: list[Front] = []
        self.rows = {each.id: ModelRow(each.id, ModelState.UNLOADED, each.model_dump_json()) for each in models}
        self.directory = Directory(self._make, models, ready=False)

    def _make(self, settings: ModelSettings) -> Front:
        self.made.append(Front(settings))
        return self.made[-1]

    def set(self, model_id: str, state: ModelState, detail: str = "") -> None:
        self.rows[model_id] = ModelRow(model_id, state, self.rows[model_id].settings, detail)
        self.tell()

    def tell(self) -> None:
        self.directory.apply(Table(self.directory.version + 1, tuple(self.rows.values())))

    def demand(self, model_id: str) -> Demand:
        found = [each for each in self.directory.report().demands if each.id == model_id]
        return found[0] if found else Demand(model_id)


Scenario = Callable[[Owner, Model[Front]], Awaitable[None]]


def play(scenario: Scenario, *models: ModelSettings) -> None:
    async def run() -> None:
        owner = Owner(*(models or (settings(A), settings(B))))
        async with asyncio.timeout(DEADLINE):
            await scenario(owner, owner.directory.find(A))

    asyncio.run(run())


def test_what_is_in_memory_of_a_model_goes_with_its_last_request_after_it_was_unloaded() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.tell()
        assert not owner.made, "it is not loaded"
        owner.set(A, ModelState.READY)
        async with model.used(1) as front:
            assert front.expected
            assert front.thread is not threading.main_thread()
            owner.set(A, ModelState.DRAINING)
            owner.set(A, ModelState.UNLOADED)
            assert "unloaded" in front.abandoned
            assert not model.keeps(front)
            assert not front.closed.is_set()
        await front.closed.wait()
        assert model.front is None
        owner.set(A, ModelState.READY)
        async with model.used(1) as another:
            assert another is not front

    play(scenario)


def test_what_is_in_memory_stays_between_requests_while_the_model_is_loaded() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.set(A, ModelState.READY)
        for _ in range(2):
            async with model.used(1) as front:
                pass
        assert owner.made == [front]
        assert not front.closed.is_set()
        owner.set(A, ModelState.UNLOADED)
        await front.closed.wait()

    play(scenario)


def test_a_model_is_read_while_it_loads_once_for_all_who_wait() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        async def ask() -> Front:
            async with model.used(DEADLINE) as front:
                return front

        asking = [asyncio.create_task(ask()) for _ in range(5)]
        while model.waiting < 5:
            await asyncio.sleep(0)
        owner.set(A, ModelState.LOADING)
        while model.front is None:
            await asyncio.sleep(0.001)
        owner.set(A, ModelState.READY)
        assert set(await asyncio.gather(*asking)) == set(owner.made)
        assert len(owner.made) == 1

    play(scenario)


def test_a_request_is_counted_in_the_step_in_which_its_model_is_granted() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        released = asyncio.Event()

        async def ask() -> None:
            async with model.used(DEADLINE, keep_alive=7):
                await released.wait()

        asking = asyncio.create_task(ask())
        while not owner.demand(A).waiting:
            await asyncio.sleep(0)
        owner.set(A, ModelState.READY)
        while not owner.demand(A).running:
            assert owner.demand(A).waiting, "it neither waits nor runs"
            await asyncio.sleep(0)
        owner.set(A, ModelState.DRAINING)
        assert (owner.demand(A).running, owner.demand(A).waiting) == (1, 0)
        assert owner.demand(A).keep_alive_seconds == 7
        released.set()
        await asking
        assert (owner.demand(A).running, owner.demand(A).served) == (0, 1)

    play(scenario)


@pytest.mark.parametrize("steps", range(8))
def test_what_runs_by_no_report_is_not_granted_after_it(steps: int) -> None:
    """However few steps of the loop lie between the table that grants and the one that drains."""

    async def scenario(owner: Owner, model: Model[Front]) -> None:
        async def ask() -> None:
            async with model.used(DEADLINE):
                await asyncio.Event().wait()

        asking = asyncio.create_task(ask())
        while not owner.demand(A).waiting:
            await asyncio.sleep(0)
        owner.set(A, ModelState.READY)
        for _ in range(steps):
            await asyncio.sleep(0)
        owner.set(A, ModelState.DRAINING)
        told = owner.demand(A)
        assert told.running + told.waiting == 1
        for _ in range(20):
            await asyncio.sleep(0)
            assert owner.demand(A).running == told.running
        asking.cancel()

    play(scenario)


def test_one_that_leaves_before_its_model_comes_is_forgotten() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        async def ask() -> None:
            async with model.used(DEADLINE):
                pass

        asking = asyncio.create_task(ask())
        while not owner.demand(A).waiting:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert owner.demand(A) == Demand(A)

    play(scenario)


def test_patience_ends_and_a_failure_is_told_at_once() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        with pytest.raises(ModelNotReady):
            async with model.used(0.01):
                pass

        async def ask() -> None:
            async with model.used(DEADLINE):
                pass

        asking = asyncio.create_task(ask())
        owner.set(A, ModelState.LOADING)
        while not model.waiting:
            await asyncio.sleep(0)
        owner.set(A, ModelState.FAILED, "no memory")
        with pytest.raises(ModelFailed, match="no memory"):
            await asking

    play(scenario)


def test_a_model_that_is_found_loaded_is_read_before_anybody_asks_for_it() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.set(A, ModelState.READY)
        while model.front is None or not model.front.expected:
            await asyncio.sleep(0.001)
        owner.tell()
        async with model.used(1) as front:
            assert owner.made == [front]

    play(scenario)


def test_what_cannot_be_read_is_not_tried_again_with_every_table(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.set(A, ModelState.READY)
        while not caplog.records:
            await asyncio.sleep(0.001)
        for _ in range(3):
            owner.tell()
            await asyncio.sleep(0)
            assert model._kept is None, "nobody reads it"

    play(scenario, settings(A).model_copy(update={"path": Path("/broken")}))


def test_a_tokenizer_that_cannot_be_read_fails_the_request_and_nothing_else() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.set(A, ModelState.READY)
        for _ in range(2):
            with pytest.raises(ModelFailed, match=r"no tokenizer\.json"):
                async with model.used(1):
                    pass
        assert owner.demand(A).running == 0

    play(scenario, settings(A).model_copy(update={"path": Path("/broken")}))


def test_text_alone_needs_no_engine_and_leaves_nothing() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        async with model.held() as front:
            assert owner.demand(A) == Demand(A)
            owner.tell()
        await front.closed.wait()
        assert not front.abandoned

    play(scenario)


def test_another_address_is_another_engine_and_the_old_one_is_used_up() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        owner.set(A, ModelState.READY)
        async with model.used(1) as old:
            moved = settings(A, address="unix:/other").model_dump_json()
            owner.rows[A] = ModelRow(A, ModelState.READY, moved)
            owner.tell()
            async with model.used(1) as new:
                assert new.settings.engine_address == "unix:/other"
            assert not old.abandoned
            assert not old.closed.is_set()
        await old.closed.wait()

    play(scenario)


def test_a_model_that_is_listed_no_more_is_unknown_and_its_requests_end() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        async def ask() -> None:
            async with owner.directory.find(B).used(DEADLINE):
                pass

        asking = asyncio.create_task(ask())
        while not owner.demand(B).waiting:
            await asyncio.sleep(0)
        del owner.rows[B]
        owner.tell()
        with pytest.raises(UnknownModel):
            await asking
        with pytest.raises(UnknownModel):
            owner.directory.find(B)

    play(scenario)


def test_an_id_goes_over_anothers_alias_and_the_first_is_the_default() -> None:
    async def scenario(owner: Owner, model: Model[Front]) -> None:
        find = owner.directory.find
        assert find(None) is find("default_model") is find("a") is find("both") is model
        assert find(B).id == B

    play(scenario, settings(A, B, "both"), settings(B, "both"))


@pytest.mark.parametrize(
    ("typed", "meant"), [("acme/aa", "acme/a"), ("LLAMA-3b", "llama-3B"), ("llma", "llama-3B"), ("zzzz", None)]
)
def test_the_nearest_name_is_the_one_that_was_meant(typed: str, meant: str | None) -> None:
    assert nearest_name(typed, ["acme/a", "llama-3B"]) == meant
