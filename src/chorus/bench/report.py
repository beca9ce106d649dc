"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from chorus import __version__
from chorus.bench.figures import Answer, Figures, Round, figures
from chorus.bench.measure import Measured, Results, Workload

VERSION = 1
"""Of the JSON's shape: raised when a program that reads it would have to change."""

_DIGITS = 6


def document(results: Results, workload: Workload, url: str, when: str) -> dict[str, Any]:
    """Every moment that was measured, and the figures that follow from them."""
    return {
        "version": VERSION,
        "chorus": __version__,
        "when": when,
        "url": url,
        "model": results.model,
        "complete": results.complete,
        "tokens": workload.tokens,
        "shared_prefix_tokens": workload.shared_prefix,
        "api": "completions" if workload.completions else "chat",
        "cases": [_case(measured) for measured in results.measured],
    }


def _case(measured: Measured) -> dict[str, Any]:
    case = measured.case
    return {
        "kind": case.kind,
        "together": case.together,
        "prompt_tokens_asked": case.prompt_tokens,
        "turns": case.turns,
        "figures": _rounded(asdict(figures(measured.rounds))),
        "rounds": [_round(each) for each in measured.rounds],
    }


def _round(measured: Round) -> dict[str, Any]:
    return {
        "seconds": round(measured.seconds, _DIGITS),
        "figures": _rounded(asdict(figures([measured]))),
        "answers": [_answer(answer) for answer in measured.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_tokens": answer.completion_tokens,
        "sent_seconds": round(answer.sent, _DIGITS),
        "ended_seconds": round(answer.ended, _DIGITS),
        "arrival_seconds": [round(moment, _DIGITS) for moment in answer.arrivals],
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in values.items()}


def _number(value: float | None) -> str:
    """Three digits that mean something, or as many as there are before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else _number(value * 1000)


COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("prompt\ntokens", lambda found: _whole(found.prompt_tokens)),
    ("cached\n", lambda found: _whole(found.cached_tokens)),
    ("answer\n", lambda found: _whole(found.completion_tokens)),
    ("first\nms", lambda found: _milliseconds(found.first_token_seconds)),
    ("token\np95", lambda found: _milliseconds(found.first_token_p95_seconds)),
    ("prompt\ntok/s", lambda found: _number(found.prompt_tokens_per_second)),
    ("decode\ntok/s", lambda found: _number(found.decode_tokens_per_second)),
    ("all\ntok/s", lambda found: _number(found.tokens_per_second)),
    ("gap\nms", lambda found: _milliseconds(found.gap_seconds)),
    ("\np99", lambda found: _milliseconds(found.gap_p99_seconds)),
    ("\nlongest", lambda found: _milliseconds(found.longest_pause_seconds)),
)
"""What stands above each figure, and how it is shown."""


def table(results: Results) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("\nstreams", no_wrap=True)
    for heading, _ in COLUMNS:
        shown.add_column(escape(heading), justify="right", no_wrap=True)
    for measured in results.measured:
        found = figures(measured.rounds)
        case = measured.case
        name = f"{case.together}" if case.turns is None else f"{case.together} agents × {case.turns}"
        shown.add_row(name, *(show(found) for _, show in COLUMNS))
    return shown


def remarks(results: Results, workload: Workload) -> list[str]:
    """What whoever reads the figures should know about them."""
    answers = [answer for each in results.measured for measured in each.rounds for answer in measured.answers]
    said = []
    if any(answer.prompt_tokens is None for answer in answers):
        said.append("it tells no usage: each piece of text counts as a token, and prompts may be longer than asked for")
    if answers and sum(answer.completion_tokens for answer in answers) < workload.tokens * len(answers) / 2:
        said.append(f"its answers ended long before {workload.tokens} tokens: fewer --tokens tell more about decoding")
    return said
