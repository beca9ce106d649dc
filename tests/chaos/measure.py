"""What a fault cost, from what clients and the server's log say. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.asking import Exchange
from tests.chaos.plan import COORDINATOR, PAUSE, Group, PlannedFault


@dataclass
class Suffered:
    """One fault that happened."""

    group: Group
    fault: PlannedFault
    at: float
    noticed: float | None = None
    """When the server first said that something is wrong."""
    gap: float | None = None
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def detection(self) -> float | None:
        return None if self.noticed is None else max(self.noticed - self.at, 0.0)


def longest_gap(exchanges: Iterable[Exchange], since: float, until: float) -> float | None:
    """The longest that a client of a stream saw nothing of its answer, within this time; counted from `since`."""
    gaps = [
        min(after, until) - max(before, since)
        for exchange in exchanges
        if exchange.body.get("stream")
        for before, after in _silences(exchange)
        if after > since and before < until
    ]
    return max(gaps, default=None)


def _silences(exchange: Exchange) -> Iterable[tuple[float, float]]:
    """From when to when it waited. What comes after the last of the text is no part of the answer."""
    seen = [exchange.began, *exchange.times]
    return itertools.pairwise(seen)


def lost(exchanges: Iterable[Exchange]) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.ended and not exchange.complete]


NOTHING = "–"
COLUMNS = "detection, gap, lost"


def table(suffered: Sequence[Suffered], rest: Sequence[tuple[str, Sequence[str]]] = ()) -> list[str]:
    """Markdown: a row for each fault and whom it befell, a column for each parallelism; `rest` are rows besides."""
    columns = list(dict.fromkeys(one.group.parallelism for one in suffered))
    models = list(dict.fromkeys(one.group.model for one in suffered))
    lines = [f"| fault | model | {' | '.join(columns)} |", f"| --- | --- | {' | '.join('---' for _ in columns)} |"]
    for kind, victim in sorted({(one.fault.kind, one.fault.victim) for one in suffered}):
        for model in models:
            cells = [
                [
                    s
                    for s in suffered
                    if (s.fault.kind, s.fault.victim, s.group.model) == (kind, victim, model)
                    and s.group.parallelism == column
                ]
                for column in columns
            ]
            if any(cells):
                shown = " | ".join(_cell(cell) for cell in cells)
                lines.append(f"| {_row(kind, victim)} | {model} | {shown} |")
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rest]
    return lines


def _row(kind: str, victim: str) -> str:
    return {COORDINATOR: "kill of the supervisor", PAUSE: f"{victim} stands still for 0.6 s"}.get(
        kind, f"{kind}, {victim}"
    )


def _cell(same: Sequence[Suffered]) -> str:
    if not same:
        return NOTHING
    seen = _median(one.detection for one in same)
    gap = _median(one.gap for one in same)
    return f"{seen} s, {gap} s, {sum(one.lost for one in same)} ({len(same)})"


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else NOTHING
