"""How many threads the BLAS has is tried out with real steps, unless somebody has said it."""

from __future__ import annotations

import logging

import pytest

from chorus.engine import warmup
from chorus.platform import blas, trials
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
    assert f"the BLAS has {chosen} of 2 threads (tried 2 in " in caplog.text
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
