"""Interleaved repetitions, what their medians say, and whether that meets the goal."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.machine import Facts, is_busy

RESULTS = Path(__file__).resolve().parent / "results"
FEWEST_FOR_AN_INTERVAL = 10
"""Rounds from which on it is said how far the median can be trusted."""
_DRAWS = 5000


@dataclass(frozen=True)
class Goal:
    """A bound on a measure: on its ratio to another side's where `against` names one, else on the figure itself."""

    measure: str
    side: str
    relation: Literal[">=", "<="]
    bound: float
    against: str | None = None
    confident: bool = False
    """Whether the whole 95 % interval of the median must lie within the bound, not the median alone."""

    @property
    def unit(self) -> str:
        return "×" if self.against else ""

    @property
    def words(self) -> str:
        subject = f"{self.measure}: {self.side}" + (f" / {self.against}" if self.against else "")
        return f"{subject} {self.relation} {shortened(self.bound)}{self.unit}"

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.relation == ">=" else value <= self.bound


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    value: float
    lowest: float
    highest: float
    met: bool
    interval: tuple[float, float] | None = None
    """Where the median lies with a probability of 95 %; None: of too few rounds to say."""


@dataclass
class Samples:
    """Figures by measure and side, in the order of the rounds."""

    units: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, measure: str, unit: str, side: str, value: float) -> None:
        if self.units.setdefault(measure, unit) != unit:
            raise ValueError(f"{measure} is measured in {self.units[measure]}, not {unit}")
        self.figures.setdefault(measure, {}).setdefault(side, []).append(value)


@dataclass(frozen=True)
class Result:
    name: str
    about: str
    started: str
    seconds: float
    machine: Facts
    load_before: float
    load_after: float
    settings: Mapping[str, Any]
    samples: Samples
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def interleave(rounds: int, measurements: Sequence[Callable[[], None]], say: Callable[[str], None]) -> None:
    """Every measurement once a round, in turned order each other round, so that a drift touches all sides alike."""
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for measurement in measurements if number % 2 == 0 else reversed(measurements):
            measurement()


def judge(goal: Goal, samples: Samples) -> Verdict:
    """By the median over rounds; a ratio is taken within each round, where both sides had the same weather."""
    own = _figures(samples, goal.measure, goal.side)
    values = own
    if goal.against is not None:
        other = _figures(samples, goal.measure, goal.against)
        values = [mine / theirs for mine, theirs in zip(own, other, strict=True)]
    value = median(values)
    interval = median_interval(values) if len(values) >= FEWEST_FOR_AN_INTERVAL else None
    judged = interval if goal.confident and interval else (value,)
    return Verdict(goal, value, min(values), max(values), all(map(goal.holds, judged)), interval)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median by bootstrap: medians of as many rounds drawn from these, again and again."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return medians[round(0.025 * _DRAWS)], medians[round(0.975 * _DRAWS) - 1]


def _figures(samples: Samples, measure: str, side: str) -> list[float]:
    try:
        return samples.figures[measure][side]
    except KeyError:
        raise ValueError(f"nothing was measured for {measure} of {side}") from None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def clock() -> float:
    return time.monotonic()


def write(result: Result, folder: Path = RESULTS) -> Path:
    _unfinished(result, folder).unlink(missing_ok=True)
    return _write(result, folder / f"{result.name}.json")


def write_unfinished(result: Result, folder: Path) -> Path:
    """What there is of a result: it stays where the run is ended before it is whole."""
    return _write(result, _unfinished(result, folder))


def _unfinished(result: Result, folder: Path) -> Path:
    return folder / f"{result.name}.unfinished.json"


def _write(result: Result, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return _replace(path, json.dumps(asdict(result), indent=2) + "\n")


def draw(result: Result, plot: Callable[[Samples], str], folder: Path = RESULTS) -> Path:
    """The picture of a result, beside its figures."""
    return _replace(folder / f"{result.name}.svg", plot(result.samples))


def _replace(path: Path, text: str) -> Path:
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
    return path


def show(result: Result, console: Console) -> None:
    facts = result.machine
    console.print(f"\n[bold]{result.name}[/]: {result.about}")
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    console.print(f"{facts.processor}, {facts.cores} cores, {facts.memory_bytes / 1e9:.0f} GB; {versions}")
    console.print(f"load average {result.load_before} before, {result.load_after} after; {result.seconds:.0f} s")
    if is_busy(result.load_before, facts.cores):
        console.print("[yellow]the machine was busy before this began: measure again when it is quiet[/]")
    console.print(_figures_table(result.samples))
    if result.verdicts:
        console.print(_verdict_table(result.verdicts))
    for note in result.notes:
        console.print(f"note: {note}")


def _figures_table(samples: Samples) -> Table:
    table = Table("measure", "side", "median", "all rounds")
    for measure, sides in samples.figures.items():
        for side, figures in sides.items():
            every = "  ".join(shortened(figure) for figure in figures)
            table.add_row(measure, side, f"{shortened(median(figures))} {samples.units[measure]}", every)
    return table


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table("goal", "measured", "95 % interval", "lowest–highest", "")
    for verdict in verdicts:
        interval = _range(*verdict.interval) if verdict.interval else ""
        outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
        measured, spread = shortened(verdict.value) + verdict.goal.unit, _range(verdict.lowest, verdict.highest)
        table.add_row(verdict.goal.words, measured, interval, spread, outcome)
    return table


def _range(low: float, high: float) -> str:
    return f"{shortened(low)}–{shortened(high)}"


def shortened(value: float) -> str:
    """Three digits that matter, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
