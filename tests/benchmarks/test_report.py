from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.machine import Facts, is_busy, parse_peak
from benchmarks.report import Goal, Result, Samples, draw, interleave, judge, shortened, write


def samples(**sides: list[float]) -> Samples:
    gathered = Samples()
    for side, figures in sides.items():
        for figure in figures:
            gathered.add("decode", "tok/s", side, figure)
    return gathered


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine got ten times slower after the first round: the ratio did not change.
    verdict = judge(
        Goal("decode", "ours", ">=", 2, against="theirs"), samples(ours=[200, 20, 20], theirs=[100, 10, 10])
    )
    assert verdict.value == 2
    assert verdict.met


def test_a_goal_is_judged_by_the_median_and_shows_the_spread() -> None:
    verdict = judge(Goal("decode", "ours", ">=", 2, against="theirs"), samples(ours=[1, 3, 9], theirs=[1, 1, 1]))
    assert (verdict.value, verdict.lowest, verdict.highest) == (3, 1, 9)


def test_where_it_matters_the_whole_interval_of_the_median_must_meet_the_goal() -> None:
    figures = samples(ours=[98, 103, 97, 104, 100, 101, 96, 105, 99, 102, 100, 100], theirs=[100] * 12)
    goal = Goal("decode", "ours", ">=", 0.995, against="theirs")
    verdict, sure = judge(goal, figures), judge(replace(goal, confident=True), figures)
    assert verdict.interval == sure.interval
    assert verdict.interval
    assert 0.97 < verdict.interval[0] < 0.995 < verdict.value < verdict.interval[1] < 1.03
    assert verdict.met
    assert not sure.met
    assert judge(replace(goal, bound=0.97, confident=True), figures).met


def test_a_few_rounds_have_no_interval() -> None:
    assert judge(Goal("decode", "ours", ">=", 1, confident=True), samples(ours=[1, 2, 3])).interval is None


@pytest.mark.parametrize(("relation", "met"), [(">=", False), ("<=", True)])
def test_a_miss_is_called_a_miss(relation: str, met: bool) -> None:
    goal = Goal("decode", "ours", relation, 10)  # type: ignore[arg-type]
    assert judge(goal, samples(ours=[9])).met is met


def test_a_goal_without_figures_is_an_error() -> None:
    with pytest.raises(ValueError, match="decode of nobody"):
        judge(Goal("decode", "nobody", ">=", 1), samples(ours=[1]))


def test_sides_with_different_numbers_of_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        judge(Goal("decode", "ours", ">=", 1, against="theirs"), samples(ours=[1, 2], theirs=[1]))


def test_a_measure_keeps_its_unit() -> None:
    gathered = samples(ours=[1])
    with pytest.raises(ValueError, match="tok/s, not s"):
        gathered.add("decode", "s", "ours", 1)


def test_every_other_round_goes_in_reverse() -> None:
    order: list[str] = []
    interleave(3, [lambda: order.append("a"), lambda: order.append("b")], say=lambda text: None)
    assert "".join(order) == "abbaab"


def test_a_result_is_written_with_every_sample(tmp_path: Path) -> None:
    gathered = samples(ours=[3, 1, 2])
    verdict = judge(Goal("decode", "ours", ">=", 1), gathered)
    facts = Facts("system", "processor", 2, 1, "3.11", {"mlx": "1"})
    result = Result("name", "about", "now", 1.0, facts, 0.1, 0.2, {}, gathered, (verdict,))
    written = json.loads(write(result, tmp_path).read_text())
    assert written["samples"]["figures"] == {"decode": {"ours": [3, 1, 2]}}
    assert written["verdicts"][0]["met"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["name.json"]
    assert draw(result, lambda figures: str(len(figures.units)), tmp_path).read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name.json", "name.svg"]


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.9, "0.9"), (0.01234, "0.0123")])
def test_figures_are_shown_with_three_digits(value: float, text: str) -> None:
    assert shortened(value) == text


def test_a_load_is_judged_by_the_number_of_cores() -> None:
    assert is_busy(0.6, cores=2)
    assert not is_busy(0.6, cores=16)


def test_the_peak_is_read_from_the_process_status() -> None:
    assert parse_peak("Name:\tpython\nVmPeak:\t 9 kB\nVmHWM:\t   1000 kB\nVmRSS:\t 5 kB\n") == 1_024_000
    with pytest.raises(ValueError, match="VmHWM"):
        parse_peak("Name:\tpython\n")


def test_a_goal_says_what_is_compared_with_what() -> None:
    assert Goal("decode", "ours", ">=", 1.8, against="theirs").words == "decode: ours / theirs >= 1.8×"
    assert Goal("CPU", "rank 0", "<=", 2).words == "CPU: rank 0 <= 2"
