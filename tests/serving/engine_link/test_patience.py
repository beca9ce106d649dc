"""How long an engine that does not serve is waited for."""

from __future__ import annotations

from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.engine_link.recovery import Patience, sight, told


def loading(progress: float) -> pb.Description:
    return pb.Description(state=pb.LOADING, progress=progress, detail="loading tiny")


def test_it_is_counted_only_while_nothing_moves() -> None:
    patience = Patience(3)
    for now in range(20):
        assert not patience.spent(sight(loading(now / 100)), float(now))
    assert not patience.spent(sight(loading(0.19)), 21.0)
    assert patience.spent(sight(loading(0.19)), 22.0)


def test_an_engine_that_starts_over_and_over_shows_nothing_new() -> None:
    patience, seen = Patience(5), [None, loading(0.0), loading(0.5)]
    spent = [patience.spent(sight(seen[now % 3]), float(now)) for now in range(9)]
    assert spent == [False] * 7 + [True] * 2


def test_steps_are_movement_too() -> None:
    patience = Patience(3)
    for now in range(20):
        assert not patience.spent(sight(pb.Description(state=pb.RECOVERING, step=now)), float(now))


def test_time_in_which_nobody_looked_does_not_count() -> None:
    patience = Patience(3)
    assert not patience.spent(None, 0.0)
    assert not patience.spent(None, 1000.0)
    assert patience.spent(None, 1003.0)


def test_who_comes_later_is_told_at_once_until_something_moves() -> None:
    patience = Patience(3)
    patience.spent(None, 0.0)
    assert patience.spent(None, 3.0)
    assert patience.spent(None, 1000.0)
    assert not patience.spent(sight(loading(0.0)), 1000.2)
    patience.renew()
    assert not patience.spent(None, 1001.0)


def test_what_the_engine_does_is_told() -> None:
    assert told(None) == "it does not answer"
    assert told(loading(0.25)) == "it is loading (25%): loading tiny"
    assert told(pb.Description(state=pb.RECOVERING, detail="rank 1 is gone")) == "it is recovering: rank 1 is gone"
