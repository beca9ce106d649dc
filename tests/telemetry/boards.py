"""What Grafana boards ask Prometheus for: ours, and vLLM's as they are here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chorus.telemetry.metrics.declared import METRICS, Kind

ROOT = Path(__file__).parents[2]
OUR_BOARD = ROOT / "docs" / "grafana" / "chorus.json"
VLLM_BOARDS = Path(__file__).parent / "vllm_boards.json"

REPLACED = (("vllm:iteration_tokens_total", "chorus_iteration_tokens"), ("vllm:", "chorus_"))
"""What docs/metrics.md has people replace in vLLM's boards; the first is a name that promtool refuses."""

NAME = re.compile(r"\bchorus_\w+")
VARIABLE = re.compile(r"^label_values\((?:(?P<of>.*), *)?(?P<label>\w+)\)$")


def ours(expression: str) -> str:
    for theirs, own in REPLACED:
        expression = expression.replace(theirs, own)
    return expression


def vllm_queries() -> list[str]:
    boards = json.loads(VLLM_BOARDS.read_text())["boards"]
    return [ours(query) for board in boards.values() for query in board["queries"]]


def vllm_variables() -> list[str]:
    boards = json.loads(VLLM_BOARDS.read_text())["boards"]
    return [ours(query) for board in boards.values() for query in board["variables"]]


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield panel
        yield from panels(panel) if "panels" in panel else ()


def our_queries() -> list[str]:
    board = json.loads(OUR_BOARD.read_text())
    return [target["expr"] for panel in panels(board) for target in panel.get("targets", ())]


def asked_for(expression: str) -> set[str]:
    """The names of metrics that stand in it, as they are scraped."""
    return set(NAME.findall(expression))


def scraped_names() -> set[str]:
    """Every name that a query can ask for."""
    names: set[str] = set()
    for metric in METRICS.values():
        parts = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        names |= {metric.written + part for part in parts}
    return names
