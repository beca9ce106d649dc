"""What a server says of itself at one moment, and what follows from two of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from chorus.cli.model_table import model_rows
from chorus.cli.own_server import ServerFailed, Target, answered, error_message, request, unanswered
from chorus.cli.status import gather_status

ANSWER_SECONDS = 10.0
MOST_MODELS = 16
"""Whose ranks are asked for, besides the default model's."""
NOT_THERE = 404
ID_LETTERS = 12
Row = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """All that `chorus top` draws."""

    url: str
    models: tuple[Row, ...]
    ranks: tuple[Row, ...]
    """Of all models, each with its `model`."""
    requests: tuple[Row, ...] | None
    """Those that run; None of a server that does not tell."""
    ended: tuple[Row, ...]
    cache: Row = field(default_factory=dict)
    when: float = field(default_factory=time.monotonic)

    @property
    def generated(self) -> dict[str, int]:
        """Tokens of each request so far, of those that ended lately too."""
        return {str(row.get("id")): row.get("generated_tokens") or 0 for row in (*self.ended, *(self.requests or ()))}


def short_id(request_id: object) -> str:
    """Enough of it to tell requests apart."""
    return str(request_id)[:ID_LETTERS]


def gather(target: Target) -> Snapshot:
    """Ask for it; raises ServerFailed."""
    status = gather_status(target)
    models = tuple(model_rows(status))
    ranks = [{**rank, "model": status.get("model")} for rank in status.get("ranks") or ()]
    others = [row for row in models if row.get("id") != status.get("model") and row.get("state") == "ready"]
    for row in others[:MOST_MODELS]:
        more = _asked(target, "/cluster/status", model=row["id"]) or {}
        ranks += [{**rank, "model": row["id"]} for rank in more.get("ranks") or ()]
    requests = _asked(target, "/requests")
    health = _asked(target, "/health") or {}
    return Snapshot(
        status["url"],
        models,
        tuple(ranks),
        tuple(requests["running"]) if requests else None,
        tuple(requests["recent"]) if requests else (),
        (health.get("engine") or {}).get("cache") or {},
    )


def cancel(target: Target, request_id: str) -> str:
    """Have a request end; says in words what came of it."""
    try:
        answer = request(target, "POST", "/requests/cancel", {"id": request_id}, ANSWER_SECONDS)
    except httpx.HTTPError as error:
        return unanswered(target, error)
    return (
        f"{short_id(request_id)} is cancelled"
        if answer.is_success
        else error_message(answer) or f"{answer.status_code}"
    )


def speed(before: Snapshot | None, now: Snapshot) -> float | None:
    """Tokens in a second over all requests, between two looks; None where there was only one."""
    if before is None or now.requests is None or now.when <= before.when:
        return None
    earlier = before.generated
    grown = sum(max(0, many - earlier.get(name, 0)) for name, many in now.generated.items())
    return grown / (now.when - before.when)


def phases(before: Snapshot | None, now: Snapshot, rank: Row) -> dict[str, float]:
    """What a rank did with its time between two looks, as shares of it; empty where it does not tell."""
    told = rank.get("phases") or {}
    same = (each for each in before.ranks if _is_same(each, rank)) if before else iter(())
    earlier = (next(same, None) or {}).get("phases") or {}
    spent = {name: max(0.0, seconds - earlier.get(name, 0.0)) for name, seconds in told.items()}
    total = sum(spent.values())
    return {name: seconds / total for name, seconds in spent.items()} if total and earlier else {}


def _is_same(one: Row, other: Row) -> bool:
    return all(one.get(name) == other.get(name) for name in ("model", "rank", "pid"))


def _asked(target: Target, path: str, **query: str) -> Row | None:
    """None where the server has no such thing."""
    try:
        answer = request(target, "GET", f"{path}?{httpx.QueryParams(query)}" if query else path, seconds=ANSWER_SECONDS)
    except httpx.HTTPError as error:
        raise ServerFailed(unanswered(target, error)) from error
    return None if answer.status_code == NOT_THERE else answered(target, answer)
