from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from chorus.platform.cpu import trials
from chorus.platform.cpu.beside import FrontEndWork
from chorus.platform.cpu.trials import candidates, choose, medians, told


@pytest.mark.parametrize(("most", "tried"), [(1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (9, [9, 8, 5, 1])])
def test_all_threads_all_but_one_half_and_one_are_tried(most: int, tried: list[int]) -> None:
    assert candidates(most) == tried


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [({4: 1.0, 2: 0.99, 1: 0.96}, 4), ({4: 1.0, 2: 0.9, 1: 0.94}, 2), ({4: 1.0, 2: 0.9, 1: 0.1}, 1), ({4: 1.0}, 4)],
)
def test_another_number_than_the_usual_must_be_clearly_faster(seconds: dict[int, float], chosen: int) -> None:
    assert choose(seconds, 4) == chosen


def test_more_than_the_usual_must_be_clearly_faster_too() -> None:
    assert choose({2: 0.97, 1: 1.0}, 1) == 1
    assert choose({2: 0.7, 1: 1.0}, 1) == 2


def test_numbers_take_turns() -> None:
    turns: list[int] = []
    assert set(medians([turns.append], [2, 1], rounds=3, seconds=60)) == {2, 1}
    assert turns == [1, 2] * 3


def test_no_round_begins_when_the_time_is_over() -> None:
    turns: list[int] = []
    medians([turns.append], [2, 1], rounds=3, seconds=0)
    assert turns == [1, 2]


def test_a_hopeless_number_is_tried_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    took, now, parts = {1: 1.0, 2: 10.0, 3: 0.5}, [0.0], list[tuple[str, int]]()
    monkeypatch.setattr(trials, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def part(name: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            parts.append((name, number))
            now[0] += took[number]

        return run

    assert medians([part("a"), part("b")], took, rounds=2, seconds=60) == {1: 2.0, 3: 1.0}
    assert parts == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 3), ("a", 1), ("b", 1), ("a", 3), ("b", 3)]


def test_a_number_that_is_slow_only_once_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    took, now = iter([1.0, 2.0, 50.0, 50.0, 1.0, 2.0]), [0.0]
    monkeypatch.setattr(trials, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def part(number: int) -> None:
        now[0] += next(took)

    assert medians([part], [1, 2], rounds=3, seconds=600) == {1: 1.0, 2: 2.0}


def test_where_the_usual_number_was_hopeless_the_fastest_is_chosen() -> None:
    assert choose({1: 1.0}, 2) == 1


def test_what_was_tried_is_told() -> None:
    assert told({2: 0.0312, 1: 0.04}, [4, 2, 1]) == "4: far slower, 2 in 31.2 ms, 1 in 40.0 ms"


def test_the_work_beside_a_trial_ends_with_it() -> None:
    with FrontEndWork() as work:
        work.tell(2)
    assert not work._thread.is_alive()
