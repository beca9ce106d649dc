"""Starts the processes of a served model, keeps them alive and ends them all, however this process ends.

A front end that dies is started again and the engine keeps the model. When a rank dies the group is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chorus.platform.exits import EXIT_CANNOT_START
from chorus.platform.lifeline import Lifeline

log = logging.getLogger("chorus.supervisor")


QUIET = {"GRPC_VERBOSITY": "NONE"}
"""gRPC's own lines on stderr repeat in its words what ours say."""


@dataclass(frozen=True)
class Program:
    """One process to run."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    failure_file: Path | None = None
    """Where the process leaves the reason when it cannot start."""
    told: str = ""
    """What it reads from standard input: needs no disk, and comes again with every start."""

    def reason(self) -> str:
        if self.failure_file and self.failure_file.is_file():
            return self.failure_file.read_text().strip()
        return f"{self.name} cannot start; its last log line says why"


@dataclass(frozen=True)
class RestartPolicy:
    most: int = 5
    within_seconds: float = 120.0
    pauses: tuple[float, ...] = (1, 2, 4, 8, 16, 32)
    """Between tries of what has run before and cannot start now. Together they are longer than the minute for which
    a connection that was closed may keep its port."""
    refused_within_seconds: float = math.inf
    """Tries longer ago than this are forgotten."""


class Restarts:
    """Decides, by how something ended, whether and when it is started again."""

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self._policy = policy or RestartPolicy()
        self._lost: list[float] = []
        self._refused: list[float] = []
        self._ran = False

    def pause(self, code: int, now: float) -> float | None:
        """Seconds until the next start; None: give up.

        What could never start will not on a second try. What has run before may only wait for its port, or a node.
        """
        policy = self._policy
        if code == EXIT_CANNOT_START:
            self._refused = [moment for moment in self._refused if now - moment < policy.refused_within_seconds]
            if not self._ran or len(self._refused) >= len(policy.pauses):
                return None
            self._refused.append(now)
            return policy.pauses[len(self._refused) - 1]
        self.has_run()
        self._lost = [moment for moment in self._lost if now - moment < policy.within_seconds]
        if len(self._lost) >= policy.most:
            return None
        self._lost.append(now)
        return 0.0

    def has_run(self) -> None:
        """It has come up, so that it may again."""
        self._ran = True
        self._refused.clear()

    @property
    def lost(self) -> int:
        """How often it was lost lately."""
        return len(self._lost)


class GaveUp(Exception):
    """A process keeps ending; says which, how, and where to look."""


class CannotStartNow(Exception):
    """What served before cannot be started this time; says why."""


class Group:
    """Processes that live and die together: the ranks of one model, or a front end alone."""

    def __init__(self, name: str, programs: Sequence[Program], lifeline: Lifeline, grace_seconds: float) -> None:
        self.name = name
        self._programs = programs
        self._lifeline = lifeline
        self._grace = grace_seconds
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def program(self, name: str) -> Program:
        return next(program for program in self._programs if program.name == name)

    async def start(self) -> None:
        for program in self._programs:
            self._running[program.name] = await asyncio.create_subprocess_exec(
                *program.arguments,
                env={**QUIET, **os.environ, **program.environment, **self._lifeline.environment()},
                stdin=asyncio.subprocess.PIPE if program.told else asyncio.subprocess.DEVNULL,
                pass_fds=tuple(program.descriptors),
                start_new_session=True,
            )
            if stream := self._running[program.name].stdin:
                stream.write(program.told.encode())
                stream.close()
            log.debug("started %s as process %d", program.name, self._running[program.name].pid)

    async def ended(self) -> tuple[str, int]:
        """Wait for the first member to end, then end the rest: its name and exit code."""
        waits = {asyncio.create_task(process.wait()): name for name, process in self._running.items()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        first = next(iter(done))
        await self.stop()
        return waits[first], first.result()

    async def stop(self) -> None:
        """Ask, wait, then kill: bounded by the grace time."""
        alive = [process for process in self._running.values() if process.returncode is None]
        for process in alive:
            _signal(process, signal.SIGTERM)
        if alive:
            _, late = await asyncio.wait(
                [asyncio.create_task(process.wait()) for process in alive], timeout=self._grace
            )
            for process in alive:
                if process.returncode is None:
                    log.warning("process %d did not end within %g s: killing it", process.pid, self._grace)
                    _signal(process, signal.SIGKILL)
            if late:
                await asyncio.wait(late)
        self._running.clear()


class Supervisor:
    def __init__(self, ranks: Group, front_end: Group, policy: RestartPolicy | None = None) -> None:
        self._groups = {"ranks": ranks, "front end": front_end}
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, on_start: Callable[[], object] | None = None) -> None:
        """Run until `stop`, or raise GaveUp. Leaves nothing behind either way."""
        keepers = [asyncio.create_task(self._keep(group)) for group in self._groups.values()]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            if on_start:
                on_start()
            done, _ = await asyncio.wait([*keepers, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*keepers, stopped):
                task.cancel()
            await asyncio.gather(*keepers, stopped, return_exceptions=True)
            # The front end goes first: it can tell its clients while the engine still answers.
            for group in reversed(self._groups.values()):
                await group.stop()

    async def _keep(self, group: Group) -> None:
        restarts = Restarts(self._policy)
        while True:
            try:
                await group.start()
                name, code = await group.ended()
                reason = group.program(name).reason() if code == EXIT_CANNOT_START else ""
            except CannotStartNow as error:
                code, reason = EXIT_CANNOT_START, str(error)
            pause = restarts.pause(code, time.monotonic())
            if pause is None:
                raise GaveUp(
                    reason
                    or f"{name} ended {restarts.lost + 1} times within {self._policy.within_seconds:g} s, last with "
                    f"{describe_exit(code)}; its log lines above say why"
                )
            if reason:
                log.warning("%s: starting the %s again in %g s", reason, group.name, pause)
            else:
                log.warning("%s ended with %s: starting the %s again", name, describe_exit(code), group.name)
            await asyncio.sleep(pause)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
