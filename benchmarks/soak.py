"""`python -m benchmarks.soak`: random load for a while, then a look at what it left behind."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from rich.console import Console

from benchmarks.load import events
from benchmarks.models import SMOLLM2, TINY, model_folder, stored_default
from benchmarks.prompts import Prompts
from benchmarks.servers import HttpServer, ServerFailed, chorus, end_cleanly_when_told
from tests.support.state import keep_apart

CLIENTS = 6
REQUEST_SECONDS = 120.0
FILL_SECONDS = 300.0
IDLE_SECONDS = 90.0
SAMPLE_SECONDS = 1.0
STAYS = 5
"""Who is there in so many samples in a row stays: a compiler is there for a moment."""
CACHE_MEMORY = "160MB"
# What memory may grow by between the middle and the end: allocators breathe, leaks walk.
GROWTH_RELATIVE, GROWTH_BYTES = 0.05, 20e6


@dataclass
class Tally:
    """What was asked and how it ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """Seconds since the start, resident bytes by process."""


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    detail: str


Kind = Callable[["Client"], Awaitable[str]]


@dataclass
class Client:
    """One of several that ask at once."""

    http: httpx.AsyncClient
    prompts: Prompts
    random: random.Random

    def body(self, **more: Any) -> dict[str, Any]:
        asked = {
            "prompt": self.prompts.of(self.random.randint(1, 200)),
            "max_tokens": self.random.randint(1, 48),
            "temperature": self.random.choice([0, 0.7, 1.0]),
        }
        return asked | more

    async def whole(self) -> str:
        response = await self.http.post("/v1/completions", json=self.body())
        _expect(response.status_code == 200, f"whole: {response.status_code} {response.text[:200]}")
        _expect(bool(response.json()["choices"][0]["finish_reason"]), "whole: no finish reason")
        return "whole"

    async def stream(self) -> str:
        finished = False
        async with self.http.stream("POST", "/v1/completions", json=self.body(stream=True)) as response:
            _expect(response.status_code == 200, f"stream: {response.status_code}")
            async for data in events(response):
                _expect("error" not in data, f"stream: {data}")
                finished = finished or any(choice.get("finish_reason") for choice in data["choices"])
        _expect(finished, "stream: ended without a finish reason")
        return "stream"

    async def chat(self) -> str:
        body = self.body(messages=[{"role": "user", "content": self.prompts.of(20)}])
        del body["prompt"]
        response = await self.http.post("/v1/chat/completions", json=body)
        _expect(response.status_code == 200, f"chat: {response.status_code} {response.text[:200]}")
        return "chat"

    async def cancel(self) -> str:
        """Go away after a few pieces of text, or before the first."""
        wanted = self.random.randint(0, 5)
        body = self.body(stream=True, max_tokens=400)
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            _expect(response.status_code == 200, f"cancel: {response.status_code}")
            seen = 0
            async for _ in events(response):
                seen += 1
                if seen > wanted:
                    break
        return "cancelled"

    async def abandon(self) -> str:
        """Give up while the server may still be reading the prompt."""
        try:
            async with asyncio.timeout(self.random.uniform(0.001, 0.2)):
                await self.http.post("/v1/completions", json=self.body(max_tokens=400))
        except TimeoutError:
            return "abandoned"
        return "whole"

    async def bad(self) -> str:
        """Each of these must be refused with an error that says why."""
        content = self.random.choice(
            [
                b"{",
                b"[]",
                b'{"prompt": 5}',
                b'{"prompt": "x", "max_tokens": 0}',
                b'{"prompt": "x", "temperature": 9}',
                b'{"prompt": "x", "model": "no-such-model"}',
                b'{"prompt": "\xff"}',
            ]
        )
        headers = {"content-type": "application/json"}
        response = await self.http.post("/v1/completions", content=content, headers=headers)
        _expect(400 <= response.status_code < 500, f"bad: {content!r} gave {response.status_code}")
        _expect(bool(response.json()["error"]["message"]), f"bad: {content!r} gave no message")
        return "refused"


KINDS: Sequence[tuple[Kind, int]] = (
    (Client.whole, 3),
    (Client.stream, 4),
    (Client.chat, 2),
    (Client.cancel, 3),
    (Client.abandon, 1),
    (Client.bad, 2),
)


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise ServerFailed(problem)


async def drive(
    server: HttpServer, model: Path, seconds: float, seed: int, fills: bool, tally: Tally
) -> dict[str, Any]:
    """What the server says of itself afterwards. `fills`: the time counts from when its cache is full."""
    over = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_SECONDS, trust_env=False) as http:
        clients = [Client(http, Prompts(model, seed + n), random.Random(seed + n)) for n in range(CLIENTS)]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(_ask_until(client, over, tally))
            if fills:
                await _wait_until_full(http)
            await _watch_memory(server, time.monotonic(), seconds, tally)
            over.set()
        return await _at_rest(http)


async def _ask_until(client: Client, over: asyncio.Event, tally: Tally) -> None:
    kinds, weights = zip(*KINDS, strict=True)
    while not over.is_set():
        kind = client.random.choices(kinds, weights)[0]
        try:
            tally.outcomes[await kind(client)] += 1
        except (ServerFailed, httpx.HTTPError, ValueError, KeyError) as error:
            tally.lost.append(f"{type(error).__name__}: {error}")


async def _watch_memory(server: HttpServer, begin: float, seconds: float, tally: Tally) -> None:
    while (elapsed := time.monotonic() - begin) < seconds:
        tally.memory.append((elapsed, await asyncio.to_thread(resident_bytes, server)))
        await asyncio.sleep(SAMPLE_SECONDS)


async def _wait_until_full(http: httpx.AsyncClient) -> None:
    """Until the cache had to give something away, or after the time for that: until then it grows, however slowly."""
    deadline = time.monotonic() + FILL_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            if (await http.get("/health")).json()["engine"]["cache"]["evicted_tokens"]:
                return
        await asyncio.sleep(SAMPLE_SECONDS)


async def _at_rest(http: httpx.AsyncClient) -> dict[str, Any]:
    """What the server says when nothing is worked on any more, or after the time for that."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        health: dict[str, Any] = (await http.get("/health")).json()
        if is_idle(health) or time.monotonic() > deadline:
            return health
        await asyncio.sleep(0.1)


def is_idle(health: dict[str, Any]) -> bool:
    """Not where the engine had no time to say so."""
    engine = health["engine"]
    return engine.get("running") == 0 and engine.get("queued") == 0 and health["requests"]["open"] == 0


def resident_bytes(server: HttpServer) -> dict[str, int]:
    found: dict[str, int] = {}
    for process in server.processes():
        try:
            found[f"{process.pid} {' '.join(process.cmdline()[1:3])}"] = process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


def memory_check(samples: Sequence[tuple[float, dict[str, int]]], seconds: float) -> Check:
    """Each process at the end against itself in the middle."""
    middle = [sizes for moment, sizes in samples if 0.4 <= moment / seconds < 0.6]
    end = [sizes for moment, sizes in samples if moment / seconds >= 0.8]
    if not middle or not end:
        return Check("memory flat", False, "too few samples: run longer")
    before, after = (set.intersection(*map(set, part[-STAYS:])) for part in (middle, end))
    if before != after:
        return Check("memory flat", False, f"other processes at the end: {sorted(before ^ after)}")
    details, passed = [], True
    for process in sorted(after):
        was = median(sizes[process] for sizes in middle if process in sizes)
        is_now = median(sizes[process] for sizes in end if process in sizes)
        passed = passed and is_now <= was * (1 + GROWTH_RELATIVE) + GROWTH_BYTES
        details.append(f"{process}: {was / 1e6:.0f} → {is_now / 1e6:.0f} MB")
    return Check("memory flat", passed, "; ".join(details))


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Others who want the processor all the time, with the same right to it."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def killed_by_the_watcher(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.endswith("killing it")]


def checks(
    tally: Tally, health: dict[str, Any], killed: Sequence[str], left: Sequence[str], seconds: float
) -> list[Check]:
    asked = ", ".join(f"{number} {kind}" for kind, number in sorted(tally.outcomes.items()))
    lost = f"{len(tally.lost)} lost, first: {tally.lost[0]}" if tally.lost else "none lost"
    load_count = health["engine"].get("load_count")
    return [
        Check("no lost request", not tally.lost and tally.outcomes.total() > 0, f"{asked}; {lost}"),
        Check("engine idle", is_idle(health), f"{health['engine']}, {health['requests']}"),
        Check("loaded once", load_count == 1, f"the model was loaded {load_count} times"),
        Check("no false alarm", not killed, "; ".join(killed) or "nobody was taken for dead"),
        memory_check(tally.memory, seconds),
        Check("no process left", not left, ", ".join(left) or "none"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to load the server (600)")
    parser.add_argument("--quick", action="store_true", help="30 seconds on a tiny random model")
    parser.add_argument("--ranks", type=int, default=1, help="ranks to serve over (1)")
    parser.add_argument("--seed", type=int, default=1, help="of the load (1)")
    parser.add_argument("--load", type=int, default=0, help="busy loops that run beside it (0)")
    options = parser.parse_args()
    seconds = 30.0 if options.quick else options.seconds
    model, name = (model_folder(TINY), str(model_folder(TINY))) if options.quick else (stored_default(), SMOLLM2)
    end_cleanly_when_told()
    keep_apart()
    console, tally = Console(), Tally()
    try:
        # So little that it is soon full: what is kept must not grow from there on. A tiny model does not fill it.
        server = chorus(name, "--ranks", str(options.ranks), "--cache-memory", CACHE_MEMORY)
        with server, busy_loops(options.load):
            console.print(f"{CLIENTS} clients load {server.name} with {name} for {seconds:g} s")
            health = asyncio.run(drive(server, model, seconds, options.seed, not options.quick, tally))
            killed = killed_by_the_watcher(server.log.read_text(errors="replace"))
            left = server.stop()
    except ServerFailed as error:
        console.print(f"[bold red]the soak could not run:[/] {error}", highlight=False)
        return 1
    results = checks(tally, health, killed, left, seconds)
    for check in results:
        word = "[green]passed[/]" if check.passed else "[bold red]FAILED[/]"
        console.print(f"{word}  {check.name}: {check.detail}", highlight=False)
    return 0 if all(check.passed for check in results) else 1


if __name__ == "__main__":
    sys.exit(main())
