"""Which models a server fetches because somebody asks it to: by their names, some at once, each once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from chorus.deploy.groups import pulls as module
from chorus.deploy.groups.pulls import ENDED_KEPT, MOST_AT_ONCE, NotPulled, Pulls
from chorus.messages.deploy import PullRow, Table, table_from_wire, table_to_wire
from chorus.models import ModelError, Progress

DEADLINE = 60.0
Report = Callable[[Progress], None]


class Fetched:
    """Fetches in its own time: as long as it is told to wait, it has half of everything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        monkeypatch.setattr(module, "_fetch", self)

    def __call__(self, name: str, report: Report) -> None:
        self.begun.append(name)
        report(Progress("downloading", 50, 100))
        assert self.may_end.wait(DEADLINE)
        report(Progress("downloading", 100, 100))
        if "broken" in name:
            raise ModelError("the disk is full")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    return Fetched(monkeypatch)


class Watched:
    """Pulls, and whoever waits for news of them."""

    def __init__(self) -> None:
        self.pulls = Pulls(self._changed)
        self._news = asyncio.Event()

    def _changed(self) -> None:
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await self._news.wait()
                self._news.clear()

    @property
    def ended(self) -> bool:
        return all(row.ended for row in self.pulls.rows)


def test_a_pull_shows_its_bytes_and_how_it_ended(fetched: Fetched) -> None:
    async def run() -> None:
        watched = Watched()
        for name in ("acme/one", "acme/broken"):
            watched.pulls.start(name)
        await watched.until(lambda: [row.done_bytes for row in watched.pulls.rows] == [50, 50])
        # The same once more is the one that runs.
        assert watched.pulls.start("acme/one").started_at == watched.pulls.rows[0].started_at
        fetched.may_end.set()
        await watched.until(lambda: watched.ended)
        one, broken = watched.pulls.rows
        assert (one.failure, one.done_bytes, one.total_bytes) == ("", 100, 100)
        assert broken.failure == "the disk is full"

    asyncio.run(run())
    assert sorted(fetched.begun) == ["acme/broken", "acme/one"]


def test_only_some_are_pulled_at_once_and_a_failed_one_may_be_tried_again(fetched: Fetched) -> None:
    async def run() -> None:
        watched = Watched()
        for number in range(MOST_AT_ONCE):
            watched.pulls.start(f"acme/broken{number}")
        with pytest.raises(NotPulled, match="acme/broken0 and acme/broken1 are being pulled"):
            watched.pulls.start("acme/more")
        fetched.may_end.set()
        await watched.until(lambda: watched.ended)
        first = watched.pulls.rows[0].started_at
        assert watched.pulls.start("acme/broken0").started_at > first
        await watched.until(lambda: watched.ended)
        for number in range(ENDED_KEPT + 5):
            watched.pulls.start(f"acme/{number}")
            await watched.until(lambda: watched.ended)
        assert len(watched.pulls.rows) <= ENDED_KEPT + 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "name", ["", "/etc", "~/x", "../x", "./x", "x.gguf", "http://host/x", "a/b/c", "a b/c", "a/..", "x"]
)
def test_nothing_but_a_name_of_the_catalog_or_of_the_hub_is_pulled(name: str, fetched: Fetched) -> None:
    async def run() -> None:
        with pytest.raises(NotPulled, match="neither a name of the catalog nor"):
            Watched().pulls.start(name)

    asyncio.run(run())
    assert not fetched.begun


def test_pulls_travel_with_the_table() -> None:
    table = Table(
        3, (), (PullRow("acme/x", "downloading", 1, 2, False, "", 5.5), PullRow("y", ended=True, failure="no"))
    )
    assert table_from_wire(table_to_wire(table)) == table
