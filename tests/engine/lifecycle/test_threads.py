"""How many threads the BLAS has is tried out with real steps, unless somebody has said it."""

from __future__ import annotations

import logging

import pytest

from chorus.engine.lifecycle import threads, warmup
from chorus.engine.lifecycle.threads import ThreadWatch
from chorus.messages.engine import Progress
from chorus.platform.cpu import blas, trials
from tests.engine.conftest import MakeLeader


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a BLAS is told that has one thread and may have two."""
    told: list[int] = []
    monkeypatch.setattr(blas, "get_threads", lambda: 1)
    monkeypatch.setattr(blas, "set_threads", told.append)
    monkeypatch.setattr(warmup, "rank_threads", lambda: 1)
    monkeypatch.setattr(warmup, "most_threads", lambda: 2)
    monkeypatch.setattr(warmup, "use_threads", told.append)
    return told


@pytest.mark.parametrize("chosen", [1, 2])
def test_the_better_number_of_threads_is_set_and_said(
    make_leader: MakeLeader,
    given: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chosen: int,
) -> None:
    leader, _ = make_leader()
    monkeypatch.setattr(trials, "choose", lambda seconds, usual: chosen)
    with caplog.at_level(logging.INFO, "chorus.engine"):
        warmup.choose_threads(leader)
    assert set(given) == {1, 2}
    assert given[-2:] == [chosen, chosen]
    assert f"the BLAS has {chosen} of 2 threads (tried 2" in caplog.text
    assert leader.idle


def test_what_was_said_is_not_tried(make_leader: MakeLeader, given: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "most_threads", lambda: 1)
    warmup.choose_threads(make_leader()[0])
    assert given == []


def test_a_blas_without_threads_is_not_tried(
    make_leader: MakeLeader, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "get_threads", lambda: None)
    warmup.choose_threads(make_leader()[0])
    assert given == []


class Machine:
    """Steps that take as long as the threads they have are said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
        self.now, self.threads, self.seconds = 0.0, 2, seconds
        self.used = 2
        monkeypatch.setattr(blas, "set_threads", lambda threads: setattr(self, "threads", threads))
        monkeypatch.setattr(threads, "use_threads", lambda threads: setattr(self, "used", threads))
        self.told: list[list[Progress]] = []
        self.watch = ThreadWatch(self.told.append, clock=lambda: self.now)
        self.watch.begin(2, 1)

    def run(self, steps: int, rows: int = 2) -> set[int]:
        """With how many threads steps ran."""
        ran = set()
        for _ in range(steps):
            self.now += self.seconds[self.threads]
            ran.add(self.threads)
            self.watch([Progress(f"{row}", tokens=(1,)) for row in range(rows)])
        return ran


def test_a_machine_that_becomes_busy_takes_threads_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(monkeypatch, {2: 1.0, 1: 1.4})
    assert machine.run(200) == {1, 2}
    assert (machine.threads, machine.used) == (2, 2)
    machine.seconds[2] = 15.0
    with caplog.at_level(logging.INFO, "chorus.engine"):
        machine.run(80)
    assert (machine.threads, machine.used) == (1, 1)
    assert "the BLAS has 1 instead of 2 threads" in caplog.text
    machine.seconds[2] = 0.1
    assert machine.run(200) == {1}
    assert len(machine.told) == 480


def test_a_trial_ends_when_streams_come_or_go(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {2: 15.0, 1: 1.0})
    while machine.threads == 2:
        machine.run(1)
    machine.run(1, rows=3)
    assert machine.threads == 2


def test_nothing_is_watched_where_there_are_no_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {2: 15.0, 1: 1.0})
    machine.watch.begin(2, 2)
    assert machine.run(200) == {2}
