"""The tables of docs/coming-from.md: what was typed, and what is typed now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "coming-from.md"
FOLDERS = {
    "launch.sh and its .env": "ring_project",
    "launch_cluster.sh and distributed_config.json": "grpc_project",
    "mlx.launch and mlx_lm.server": "mlx_lm",
    "local-ai worker and its YAML": "localai",
}
"""By section of the page: the folder here with that project's files, in which its lines are typed."""
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*chorus ")


@dataclass(frozen=True)
class Row:
    project: str
    typed: str
    """The whole cell, as it stands on the page."""
    now: tuple[str, ...]
    """The commands in it, in their order."""


def rows() -> Iterator[Row]:
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| `") else []
            if cells:
                spans = re.findall(r"`([^`]+)`", cells[1])
                yield Row(FOLDERS[title], cells[0], tuple(span for span in spans if _COMMAND.match(span)))


def now(project: str, typed: str) -> tuple[str, ...]:
    """What is typed instead of a line; it must be on the page."""
    (row,) = [row for row in rows() if (row.project, row.typed) == (project, typed)]
    return row.now
