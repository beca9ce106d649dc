from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from chorus.bench.figures import Answer, Round
from chorus.bench.measure import Case, Measured, Results, Workload
from chorus.bench.plot import CannotPlot, check_can_plot, draw, series
from chorus.bench.report import document, remarks, table

CASES = (Case(1, 16), Case(8, 16), Case(2, 16, turns=3))
WORKLOAD = Workload(CASES, tokens=4, rounds=1)


def results(told: bool = True, tokens: int = 4) -> Results:
    arrivals = tuple(0.5 + 0.25 * step for step in range(tokens))
    one = Answer(0.0, arrivals, 2.0, 20 if told else None, tokens, 5 if told else None)
    measured = [Measured(case, [Round(case.together, 2.0, (one,) * case.together)]) for case in CASES]
    return Results("tiny", [*measured, Measured(Case(16, 16))], complete=False)


def shown(found: Results) -> list[str]:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table(found))
    return captured.get().splitlines()


def test_the_table_has_a_row_for_each_case_that_was_measured() -> None:
    *_, one, eight, agents = shown(results())
    assert one.split() == ["1", "20", "5", "4", "500", "500", "30.0", "4.00", "2.00", "250", "250", "250"]
    assert eight.split()[:7] == ["8", "20", "5", "4", "500", "500", "240"]
    assert agents.startswith("2 agents × 3 ")
    assert len(shown(results())) == 5


def test_what_a_server_does_not_tell_is_a_dash() -> None:
    assert shown(results(told=False))[2].split()[:4] == ["1", "-", "-", "4"]


def test_the_document_has_its_version_every_sample_and_the_figures() -> None:
    found = json.loads(json.dumps(document(results(), WORKLOAD, "http://x", "now")))
    assert (found["version"], found["model"], found["complete"]) == (1, "tiny", False)
    one, eight, agents = found["cases"]
    assert one["rounds"][0]["answers"][0]["arrival_seconds"] == [0.5, 0.75, 1.0, 1.25]
    assert one["figures"] == one["rounds"][0]["figures"]
    assert (eight["together"], eight["figures"]["decode_tokens_per_second"]) == (8, 32.0)
    assert (agents["kind"], agents["turns"]) == ("agents", 3)


def test_remarks_say_what_the_figures_do_not() -> None:
    assert remarks(results(), WORKLOAD) == []
    (unknown,) = remarks(results(told=False), WORKLOAD)
    assert "no usage" in unknown
    (short,) = remarks(results(tokens=1), WORKLOAD)
    assert "ended long before 4 tokens" in short


def test_a_picture_has_a_line_for_each_length_and_for_agents() -> None:
    found = {name: [x for x, _ in points] for name, points in series(results()).items()}
    assert found == {"prompts of 16 tokens": [1, 8], "agents, 3 turns of 16 tokens": [2]}


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_can_plot(tmp_path / "found.png")
    draw(results(), "a $model$ at http://x", tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_is_told_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotPlot, match=r"call it found\.png"):
        check_can_plot(Path("found.pdf"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(CannotPlot, match="pip install matplotlib"):
        check_can_plot(Path("found.png"))
