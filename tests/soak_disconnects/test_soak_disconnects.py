"""What the soak takes for a leak, and what it asks."""

from __future__ import annotations

from dataclasses import replace

from tests.soak_disconnects.asking import Moment, drawn
from tests.soak_disconnects.figures import Figures, Held, growth, leaks, one_of_each, role

CALM = Figures({"front end": [Held(20, 10, 50_000_000)], "rank 0": [Held(15, 20, 100_000_000)]}, tasks=5)


def held(name: str, *processes: Held) -> Figures:
    return replace(CALM, processes={**CALM.processes, name: processes})


def test_a_process_that_holds_more_than_before_leaks() -> None:
    assert leaks(CALM, CALM) == []
    assert leaks(CALM, held("rank 0", Held(40, 20, 1))) == ["rank 0: 40 descriptors, before 15"]
    assert leaks(CALM, held("front end", Held(20, 30, 1))) == ["front end: 30 threads, before 10"]
    assert leaks(CALM, held("grammars", Held(1, 1, 1), Held(1, 1, 1)))[0] == "grammars: 2 processes, before 0"
    assert leaks(CALM, replace(CALM, tasks=50)) == ["front end: 50 tasks, before 5"]


def test_what_a_grammar_has_left_for_a_moment_is_no_rest() -> None:
    assert one_of_each(held("grammars", Held(1, 1, 1)))
    assert not one_of_each(held("grammars", Held(1, 1, 1), Held(1, 1, 1)))


def test_memory_is_compared_with_the_most_at_any_rest_before() -> None:
    fresh, full = held("rank 0", Held(15, 20, 60_000_000)), held("rank 0", Held(15, 20, 110_000_000))
    assert growth([CALM, fresh], full) == []
    assert growth([fresh, fresh], full) == ["rank 0: 110 MB, before 60 MB"]


def test_a_process_is_told_by_the_module_that_it_runs() -> None:
    assert role(["python", "-m", "chorus.rank", "--rank", "1"]) == "rank 1"
    assert role(["python", "-m", "chorus.engine"]) == "rank 0"
    assert role(["mpirun"]) == "others"


def test_every_moment_comes_in_turn_and_a_request_follows_from_seed_and_number() -> None:
    assert {drawn(1, number).moment for number in range(len(Moment))} == set(Moment)
    assert drawn(1, 5) == drawn(1, 5)
    assert drawn(1, 5) != drawn(2, 5)
