"""How many lanes a pipeline decodes in is tried out, not guessed."""

from __future__ import annotations

import pytest

from chorus.engine.leader import Leader
from chorus.engine.lifecycle import warmup
from tests.engine.conftest import MakeLeader


class Clock:
    """Time that passes only in turns of the leader, as many seconds as its lanes are said to take."""

    def __init__(self, leader: Leader, seconds: dict[int, float]) -> None:
        self.now = 0.0
        self._scheduler, self._seconds, self._turn = leader.scheduler, seconds, leader.turn
        leader.turn = self.turn  # type: ignore[method-assign]

    def turn(self) -> None:
        self.now += self._seconds[self._scheduler.limits.lanes]
        self._turn()

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("one", "several", "chosen"), [(1.0, 0.1, 2), (0.1, 1.0, 1), (1.0, 1.0, 1)])
def test_the_faster_number_of_lanes_is_chosen(
    make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch, one: float, several: float, chosen: int
) -> None:
    leader, _ = make_leader()
    monkeypatch.setattr(warmup, "time", Clock(leader, {1: one, 2: several}))
    assert warmup.choose_lanes(leader, 2) == chosen
    assert leader.idle


def test_where_nothing_is_batched_there_is_nothing_to_try(make_leader: MakeLeader) -> None:
    leader, _ = make_leader(max_batch=1)
    assert warmup.choose_lanes(leader, 2) == 1
