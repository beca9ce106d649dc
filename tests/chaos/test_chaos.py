"""What draws the faults of chaos, counts and judges them; `.ci/run` lets forty of them happen."""

from __future__ import annotations

from collections import Counter

import pytest

from chorus.messages.engine import Finish, Request
from tests.chaos.asking import Exchange
from tests.chaos.measure import Suffered, longest_gap, table
from tests.chaos.noted import Noted
from tests.chaos.plan import SMOLLM2, Group, PlannedFault, draw

SEED = 5


@pytest.mark.parametrize("faults", [40, 200])
def test_a_plan_has_so_many_faults_over_every_parallelism_and_follows_from_its_seed(faults: int) -> None:
    sessions = draw(SEED, faults)
    assert sessions == draw(SEED, faults) != draw(SEED + 1, faults)
    assert sum(len(session.faults) for session in sessions) == faults
    assert {session.group.parallelism for session in sessions} == {"pipeline/grpc", "pipeline/ring", "tensor/mpi"}
    victims = Counter(fault.victim for session in sessions for fault in session.faults)
    assert {"leader", "follower", "front end"} <= set(victims)
    real = sum(len(session.faults) for session in sessions if session.group.model == SMOLLM2)
    assert real == pytest.approx(faults / 10, abs=1)


def exchange(began: float, times: list[float], **more: object) -> Exchange:
    return Exchange("1", "chat", "/", {"stream": True}, began, times[-1] if times else 0.0, times, **more)  # type: ignore[arg-type]


def test_the_longest_gap_is_counted_from_the_detection_and_includes_who_came_later() -> None:
    interrupted, late = exchange(0.0, [1.0, 9.0, 9.5]), exchange(4.0, [12.0])
    before = exchange(0.0, [0.1, 1.9])
    assert longest_gap([interrupted, before], since=2.0, until=20.0) == 7.0
    assert longest_gap([interrupted, late], since=2.0, until=20.0) == 8.0
    assert longest_gap([before], since=2.0, until=20.0) is None


def test_the_table_has_medians_and_the_sum_of_what_was_lost() -> None:
    group, fault = Group("pipeline", "grpc", 3), PlannedFault("kill", "outside", 1, 0.0)
    suffered = [Suffered(group, fault, 10.0, 10.0 + seen, 2 * seen, 1) for seen in (0.1, 0.2, 0.9)]
    assert table(suffered)[2] == "| kill, follower | 0.20 / 0.40 / 3 (3) |"


def test_an_answer_that_is_shorter_than_it_says_is_seen() -> None:
    request = Request("1:chaos-1", (1, 2), 3)
    assert Noted(request, [4, 5, 6], finish=Finish.LENGTH).problem() is None
    assert "2 tokens" in str(Noted(request, [4, 5], finish=Finish.LENGTH).problem())
    assert "EngineLost" in str(Noted(request, [4], ended="EngineLost: gone").problem())
