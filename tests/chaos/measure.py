"""What a fault cost, from what clients and the server's log say. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.asking import Exchange
from tests.chaos.plan import LOCALAI, PAUSE, TINY, TOLD, Group, PlannedFault


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


def table(suffered: Sequence[Suffered]) -> list[str]:
    """Markdown: a row for each fault, whom it befell and with which model, a column for each parallelism."""
    columns = list(dict.fromkeys(one.group.parallelism for one in suffered))
    lines = [f"| fault | {' | '.join(columns)} |", f"| --- | {' | '.join('---' for _ in columns)} |"]
    for row in sorted({_row(one) for one in suffered}):
        cells = [[one for one in suffered if (_row(one), one.group.parallelism) == (row, name)] for name in columns]
        lines.append(f"| {' | '.join([', '.join(filter(None, row)), *map(_cell, cells)])} |")
    return lines


def _row(one: Suffered) -> tuple[str, str, str]:
    """LocalAI's protocol and the real model, where it was these, and the fault."""
    fault = one.fault
    told = {**TOLD, PAUSE: f"{fault.victim} stands still for 0.6 s"}.get(fault.kind, f"{fault.kind}, {fault.victim}")
    return (
        "LocalAI" if one.group.served == LOCALAI else "",
        "" if one.group.model == TINY else "SmolLM2",
        "two, one before the other is over" if fault.then else told,
    )


def _cell(same: Sequence[Suffered]) -> str:
    if not same:
        return NOTHING
    seen, gap = (_median(values) for values in ([one.detection for one in same], [one.gap for one in same]))
    return f"{seen} / {gap} / {sum(one.lost for one in same)} ({len(same)})"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else NOTHING
