"""`python -m tests.soak_disconnects`: clients that go away at every moment of a request, also while a rank is replaced.

Whoever stays gets a whole answer, whatever is lost meanwhile. Afterwards no sequence, cache, descriptor, thread, task,
process or memory may be left of those who went.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.servers import HttpServer, ServerFailed, chorus, end_cleanly_when_told
from benchmarks.soak import Check, is_idle
from tests.soak_disconnects import figures
from tests.soak_disconnects.asking import Ask, Moment, Outcome, View, ask, drawn
from tests.soak_disconnects.figures import Figures
from tests.soak_disconnects.model import write_model
from tests.support.state import keep_apart

CLIENTS = 8
WARM = 4 * len(Moment)
"""Requests before the first look, of every kind."""
VIEW_SECONDS = 0.03
REST_SECONDS = 60.0
MOST_FAULTS = 10
"""After so many the verdict is known, and each may have taken minutes."""
LOSSES = ("chorus.rank", "chorus.engine")
CALM = 0.9
"""Of the requests: no rank is killed after these, so that the last one started has had some to serve."""
SETTINGS = {
    "api": {"max_stored_bytes": 1 << 18},
    "engine": {"max_batch": 5, "prefill_chunk": 16, "context": 2048, "grammar_memory_mb": 64},
    "cache": {"memory": "32MB"},
}
"""Few run at a time and prompts are read in small pieces, so that there is always somebody at every moment."""


@dataclass
class Tally:
    left: Counter[Moment] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def note(self, asked: Ask, outcome: Outcome) -> None:
        self.left[outcome.moment] += 1
        if outcome.fault:
            self.faults.append(f"request {asked.number} ({asked.path}), {asked.moment}: {outcome.fault}")


class Soak:
    def __init__(self, server: HttpServer, seed: int) -> None:
        self.tally = Tally()
        self._server = server
        self._seed = seed
        self._view = View()
        self._nursery: psutil.Process | None = None
        self._http = httpx.AsyncClient(base_url=server.url, timeout=30.0, trust_env=False)

    async def run(self, requests: int, kills: int) -> tuple[list[Figures], dict[str, Any]]:
        """Figures at rest before, in the middle and at the end; then what is cached once all was cleared."""
        async with self._http:
            watching = asyncio.create_task(self._watch())
            at_rest = []
            lost = loss_places(requests, kills)
            for numbers in (range(-WARM, 0), range(requests // 2), range(requests // 2, requests)):
                await self._ask_all(iter(numbers), lost)
                found, health = await self._rest(at_rest[0] if at_rest else None)
                at_rest.append(found)
                print(f"at rest after {max(0, numbers.stop)} requests: {figures.told(at_rest[-1])}", flush=True)
            watching.cancel()
            await self._http.post("/cache/clear")
            return at_rest, {"before": health, "after": await self._cleared()}

    async def _ask_all(self, numbers: Iterator[int], lost: dict[int, str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(self._client(numbers, lost))

    async def _client(self, numbers: Iterator[int], lost: dict[int, str]) -> None:
        for number in numbers:
            if len(self.tally.faults) >= MOST_FAULTS:
                return
            asked = drawn(self._seed, number)
            asking = asyncio.create_task(ask(asked, self._server.port, self._view, self._compiling))
            if number in lost:
                await self._kill(lost[number])
            self.tally.note(asked, await asking)

    async def _kill(self, module: str) -> None:
        """Once the one before is replaced."""
        await self._until_ready()
        for process in await asyncio.to_thread(self._server.processes_running, module):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self.tally.losses.append(figures.role([module]))

    async def _until_ready(self) -> None:
        async with asyncio.timeout(REST_SECONDS):
            while self._view.state != "ready":
                await asyncio.sleep(VIEW_SECONDS)

    async def _compiling(self) -> bool:
        if self._nursery is None or not self._nursery.is_running():
            found = await asyncio.to_thread(self._server.processes_running, "chorus.text.grammar")
            self._nursery = min(found, key=lambda process: process.pid, default=None)
        return self._nursery is not None and bool(_children(self._nursery))

    async def _watch(self) -> None:
        while True:
            try:
                engine = (await self._health())["engine"]
                self._view.state = engine["state"]
                self._view.running, self._view.queued = engine.get("running", 0), engine.get("queued", 0)
                self._view.step = engine.get("step", 0)
            except (httpx.HTTPError, ValueError, KeyError):
                self._view.state = "silent"
            self._view.looks += 1
            await asyncio.sleep(VIEW_SECONDS)

    async def _health(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self._http.get("/health")).json()
        return found

    async def _rest(self, before: Figures | None) -> tuple[Figures, dict[str, Any]]:
        """When nothing is worked on any more and what was opened is closed, or after the time for that; and what the
        server said of itself then.
        """
        deadline = time.monotonic() + REST_SECONDS
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                health = await self._health()
                held = await asyncio.to_thread(lambda: figures.held(self._server.processes()))
                found = Figures(held, health["requests"]["tasks"])
                # What all later ones are compared with must not have the process of a grammar that is about to go.
                settled = not figures.leaks(before, found) if before else figures.one_of_each(found)
                if (is_idle(health) and settled) or time.monotonic() > deadline:
                    return found, health
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server does not come to rest:\n{self._server.log_tail()}")

    async def _cleared(self) -> dict[str, Any]:
        """A step has to tell the ranks; then it is gone."""
        deadline = time.monotonic() + REST_SECONDS
        while (health := await self._health())["engine"]["cache"]["bytes"] and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return health


def loss_places(requests: int, kills: int) -> dict[int, str]:
    """With which requests a rank is killed, and which: follower and leader in turn."""
    return {round((n + 0.5) * CALM * requests / kills): LOSSES[n % len(LOSSES)] for n in range(kills)}


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.Error:
        return []


@contextlib.contextmanager
def served() -> Iterator[HttpServer]:
    with tempfile.TemporaryDirectory(prefix="chorus-disconnects-") as name:
        folder = Path(name)
        model = write_model(folder / "model")
        (folder / "chorus.json").write_text(json.dumps(SETTINGS))
        options = ("--config", str(folder / "chorus.json"), "--ranks", "2", "--transport", "grpc")
        with chorus(model, *options) as server:
            yield server


def checks(tally: Tally, kills: int, at_rest: list[Figures], health: dict[str, Any], left: list[str]) -> list[Check]:
    *before, end = at_rest
    engine, cleared = health["before"]["engine"], health["after"]["engine"]["cache"]
    cache = engine["cache"]
    missing = [moment for moment in Moment if not tally.left[moment] and (kills or moment is not Moment.RECOVERY)]
    moments = ", ".join(f"{number} when {moment}" for moment, number in sorted(tally.left.items()))
    faults = "; ".join(tally.faults[:5])
    leaks, growth = figures.leaks(before[0], end), figures.growth(before, end)
    return [
        Check("clients left at every moment", not missing, f"{moments}; {len(tally.losses)} ranks were killed"),
        Check("who stayed was answered", not tally.faults, f"{len(tally.faults)} faults {faults}"),
        Check("no sequence left", is_idle(health["before"]), f"{engine['running']} run, {engine['queued']} wait"),
        Check(
            "no cache left",
            not cache["live_bytes"] and cache["bytes"] <= cache["budget_bytes"] and not cleared["bytes"],
            f"{cache['live_bytes']} bytes of requests, {cache['bytes']} of {cache['budget_bytes']} stored, "
            f"{cleared['bytes']} once cleared",
        ),
        Check("nothing left open", not leaks, "; ".join(leaks) or "as before"),
        Check("memory flat", not growth, "; ".join(growth) or "as before"),
        Check("no process left", not left, ", ".join(left) or "none"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_disconnects", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--kills", type=int, help="how many ranks are killed on the way (one for every 50 requests)")
    parser.add_argument("--seed", type=int, default=1, help="what the requests follow from (1)")
    given = parser.parse_args()
    kills = given.requests // 50 if given.kills is None else given.kills
    end_cleanly_when_told()
    keep_apart()
    begin = time.monotonic()
    try:
        with served() as server:
            print(f"{given.requests} requests of seed {given.seed}, {kills} ranks killed meanwhile", flush=True)
            soak = Soak(server, given.seed)
            at_rest, health = asyncio.run(soak.run(given.requests, kills))
            log = server.log_tail(40)
            left = server.stop()
    except ServerFailed as error:
        print(f"the soak could not run: {error}")
        return 1
    results = checks(soak.tally, kills, at_rest, health, left)
    for check in results:
        print(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}")
    failed = not all(check.passed for check in results)
    if failed:
        print(log)
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
