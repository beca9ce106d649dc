"""The models of a server, a line each, as `chorus ps`, `chorus status` and `chorus load` read and show them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from chorus.platform.sizes import size
from chorus.platform.terminal import harmless

Row = dict[str, Any]
SERVES = ("ready", "draining")
"""States of a model that has its processes."""


def model_rows(status: dict[str, Any]) -> list[Row]:
    """From what /cluster/status says. A server that lists no models, as older ones do, has the one that it is about."""
    if status.get("models"):
        return list(status["models"])
    ranks = status.get("ranks") or []
    known = {"id": status.get("model"), **{key: status.get(key) for key in ("state", "progress", "detail", "running")}}
    nodes = list(dict.fromkeys(rank["node"] for rank in ranks if rank.get("node")))
    return [{**known, "waiting": status.get("queued"), "ranks": len(ranks), "nodes": nodes}]


def names_of(row: Row) -> tuple[str, ...]:
    """What a model may be called by where somebody types it."""
    return (str(row["id"]), str(row["id"]).rpartition("/")[2], *(row.get("aliases") or ()))


def show(rows: list[Row], console: Console) -> None:
    for part in rendered(rows):
        console.print(part, soft_wrap=isinstance(part, Text))


def rendered(rows: list[Row]) -> Iterator[RenderableType]:
    """A table, and a line for each model that has something to tell."""
    table = Table("model", "state", "size", "ranks", "nodes", "context", "streams", "until")
    for row in rows:
        table.add_row(*(Text(harmless(text)) for text in cells(row, time.time())))
    yield table
    for row in rows:
        if row.get("detail") and row.get("state") not in SERVES:
            yield Text(harmless(f"{row['id']}: {row['detail']}"))


def cells(row: Row, now: float) -> tuple[str, ...]:
    """One model as people read it."""
    state = str(row.get("state") or "-")
    waiting = f" + {row['waiting']} waiting" if row.get("waiting") else ""
    return (
        str(row.get("id") or "-"),
        f"{state} {row.get('progress') or 0:.0%}" if state == "loading" else state,
        size(row["booked_bytes"]) if row.get("booked_bytes") else "-",
        str(row.get("ranks") or "-"),
        ", ".join(row.get("nodes") or ()) or "-",
        f"{row['context_length']:,}" if row.get("context_length") else "-",
        f"{row.get('running') or 0}{waiting}",
        _until(row, now) if state in SERVES else "-",
    )


def _until(row: Row, now: float) -> str:
    if not row.get("until"):
        return "stays"
    left = max(0, row["until"] - now)
    return (
        f"in {left / 3600:.1f} h" if left >= 5400 else f"in {left / 60:.0f} min" if left >= 90 else f"in {left:.0f} s"
    )
