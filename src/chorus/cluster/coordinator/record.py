"""Where a serving coordinator leaves word for the other commands of its machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chorus.platform.files import write_if_possible
from chorus.platform.process.mark import mark


@dataclass(frozen=True)
class Serving:
    pid: int
    mark: str
    url: str
    status_file: str
    model: str


@contextlib.contextmanager
def recorded(state: Path, url: str, status_file: Path, model: str) -> Iterator[None]:
    file = state / "serving.json"
    mine = Serving(os.getpid(), mark(os.getpid()), url, str(status_file), model)
    write_if_possible(file, json.dumps(asdict(mine)).encode(), "`chorus status` will not find this server")
    try:
        yield
    finally:
        if find_serving(state) == mine:
            file.unlink(missing_ok=True)


def find_serving(state: Path) -> Serving | None:
    """What is being served from this state folder, as long as its process lives."""
    try:
        found = Serving(**json.loads((state / "serving.json").read_text()))
        return found if mark(found.pid) == found.mark else None
    except (OSError, ValueError, TypeError, psutil.Error):
        return None
