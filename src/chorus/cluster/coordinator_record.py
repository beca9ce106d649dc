"""Where a serving coordinator leaves word for the other commands of its machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chorus.cluster.agent_paths import write_private


@dataclass(frozen=True)
class Serving:
    pid: int
    url: str
    status_file: str
    model: str


@contextlib.contextmanager
def recorded(state: Path, url: str, status_file: Path, model: str) -> Iterator[None]:
    file = state / "serving.json"
    mine = Serving(os.getpid(), url, str(status_file), model)
    write_private(file, json.dumps(asdict(mine)).encode())
    try:
        yield
    finally:
        if find_serving(state) == mine:
            file.unlink(missing_ok=True)


def find_serving(state: Path) -> Serving | None:
    """What is being served from this state folder, as long as its process lives."""
    try:
        found = Serving(**json.loads((state / "serving.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if psutil.pid_exists(found.pid) else None
