"""What the engine fed to its ranks, from the log of its steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.machine import cpu_of
from benchmarks.servers import HttpServer, ServerFailed
from benchmarks.soak import is_idle

IDLE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_QUIET_SECONDS, _QUIET_SHARE = 0.4, 0.1


class StepLog:
    """Follows the file that `--step-log` names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new(self, server: HttpServer) -> list[dict[str, Any]]:
        """The steps since the last call, once the engine has nothing more to do."""
        wait_until_idle(server)
        lines = self.path.read_text().splitlines()
        added, self._read = lines[self._read :], len(lines)
        return [json.loads(line) for line in added]


def wait_until_idle(server: HttpServer) -> None:
    deadline = time.monotonic() + IDLE_SECONDS
    while not is_idle(server.get("/health")):
        if time.monotonic() > deadline:
            raise ServerFailed(f"{server.name} is not idle {IDLE_SECONDS:g} s after its last answer")
        time.sleep(_POLL_SECONDS)


def wait_until_quiet(server: HttpServer) -> None:
    """For a server that cannot be asked: until its processes hardly use a core."""
    deadline = time.monotonic() + IDLE_SECONDS
    before, since = sum(cpu_of(server.processes()).values()), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(_QUIET_SECONDS)
        now, moment = sum(cpu_of(server.processes()).values()), time.monotonic()
        if now - before < _QUIET_SHARE * (moment - since):
            return
        before, since = now, moment
    raise ServerFailed(f"{server.name} is still busy {IDLE_SECONDS:g} s after its last answer")


def fed_tokens(steps: Iterable[dict[str, Any]]) -> int:
    return sum(step["tokens"] for step in steps)
