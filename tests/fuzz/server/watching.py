"""The server from outside while it is fuzzed: its processes, their memory, and whether it still answers others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from tests.fuzz.server.attempts import Attempt, request
from tests.fuzz.server.bodies import COMPLETIONS
from tests.fuzz.server.sending import send

PROBE_EVERY_SECONDS = 1.0
PROBE_PATIENCE_SECONDS = 60.0
# What memory may grow by between the middle and the end: allocators breathe, leaks walk.
GROWTH_RELATIVE, GROWTH_BYTES = 0.05, 20e6


@dataclass(frozen=True, order=True)
class Identity:
    """A process, told from a later one with the same number by when it began."""

    pid: int
    began: float
    name: str


def identity(process: psutil.Process) -> Identity | None:
    try:
        words = process.cmdline()
        return Identity(process.pid, process.create_time(), " ".join(words[1:3]) if len(words) > 1 else process.name())
    except psutil.Error:
        return None


def alive(processes: Iterable[psutil.Process]) -> set[Identity]:
    return {found for process in processes if (found := identity(process)) is not None}


def memory_of(identities: Iterable[Identity]) -> dict[Identity, int]:
    """Bytes that each process has for itself and would give back by ending."""
    found: dict[Identity, int] = {}
    for known in identities:
        try:
            found[known] = psutil.Process(known.pid).memory_full_info().uss
        except psutil.Error:
            continue
    return found


def excess(before: Mapping[Identity, int], after: Mapping[Identity, int]) -> dict[Identity, float]:
    """By how much each process is larger than it may be; below zero where it is not."""
    return {
        known: after[known] - (before[known] * (1 + GROWTH_RELATIVE) + GROWTH_BYTES)
        for known in before
        if known in after
    }


@dataclass
class Watch:
    """Asks for one token every second, and looks whether the processes of the start are still there."""

    port: int
    processes: Callable[[], Sequence[psutil.Process]]
    recent: Callable[[], list[int]]
    """The numbers of the requests that were being answered at any time since this was asked last."""
    key: str | None
    limit: float
    expected: set[Identity] = field(default_factory=set)
    probes: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            begin = time.monotonic()
            trouble = await self._probe()
            gone = await asyncio.to_thread(self.look)
            around = self.recent()
            self.problems += [f"{trouble}, during requests {around}"] if trouble else []
            self.ended += [f"{known.name} (process {known.pid}) ended during requests {around}" for known in gone]
            await asyncio.sleep(max(0.0, begin + PROBE_EVERY_SECONDS - time.monotonic()))

    async def _probe(self) -> str | None:
        body = json.dumps({"prompt": "hello", "max_tokens": 1, "temperature": 0}).encode()
        attempt = Attempt("probe", (request("POST", COMPLETIONS, body, key=self.key),), patience=PROBE_PATIENCE_SECONDS)
        answer = await send(attempt, self.port)
        self.probes.append(answer.seconds)
        if answer.status != 200:
            return f"a probe was answered with {answer.status} ({answer.ending})"
        return f"a probe took {answer.seconds:.1f} s" if answer.seconds > self.limit else None

    def look(self) -> list[Identity]:
        """Which of the expected processes are gone; those that took their place are expected from now on."""
        now = alive(self.processes())
        gone = self.expected - now
        names = {known.name for known in gone}
        self.expected = (self.expected & now) | {known for known in now if known.name in names}
        return sorted(gone)
