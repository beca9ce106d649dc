"""Starts the processes of a served model, keeps them alive and ends them all, however this process ends.

A front end that dies is started again and the engine keeps the model. When a rank dies the group is started anew. A
process that shows no sign of life is killed, and has died then like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.awake import Awake
from chorus.platform.filelimit import raise_file_limit
from chorus.platform.process.beats import Monitor
from chorus.platform.process.exits import EXIT_CANNOT_START
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import NEVER_SERVED, Life, RestartPolicy, Restarts, describe_exit
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.process.watcher import Watched, Watcher

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
    """The line that it reads from standard input: needs no disk, and comes again with every start."""
    processes: int = 1
    """How many of ours it starts by itself, where it is not one of ours."""
    restarts: int | None = None
    """How often in a row it may be started again at most; None: as often as anything."""

    def reason(self) -> str:
        if self.failure_file and self.failure_file.is_file():
            return self.failure_file.read_text().strip()
        return f"{self.name} cannot start; its last log line says why"


class GaveUp(ChorusError):
    """A process keeps ending; says which, how, and where to look."""


class CannotStartNow(ChorusError):
    """What served before cannot be started this time; says why."""


class ProcessGroup:
    """Processes that live and die together: the ranks of one model, or a front end alone."""

    def __init__(
        self,
        name: str,
        programs: Sequence[Program],
        lifeline: Lifeline,
        grace_seconds: float,
        timing: WatchTimes = DEFAULTS,
    ) -> None:
        self.name = name
        self._programs = programs
        self._lifeline = lifeline
        self._grace = grace_seconds
        self._timing = timing
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watcher = Watcher()
        self._monitors: dict[str, Monitor] = {}
        self._watching: asyncio.Task[None] | None = None
        self._started_at = 0.0
        self._awake = Awake()

    def program(self, name: str) -> Program:
        return next(program for program in self._programs if program.name == name)

    @property
    def restarts(self) -> int | None:
        """How often in a row all of it may be started again at most."""
        return min((program.restarts for program in self._programs if program.restarts is not None), default=None)

    @property
    def serves(self) -> bool:
        """Whether every process says that it does its work now."""
        return self._watcher.all_serve

    def life(self, now: float) -> Life:
        """How long the last start took to serve, and how long it has served."""
        served_at = self._watcher.served_at or now
        return Life(served_at - self._started_at, now - served_at)

    async def start(self) -> None:
        self._started_at, self._watcher = time.monotonic(), Watcher()
        raise_file_limit()  # what is started inherits it
        self._awake.hold()
        for program in self._programs:
            monitor = self._monitor(program)
            self._running[program.name] = await asyncio.create_subprocess_exec(
                *program.arguments,
                env={
                    **QUIET,
                    **os.environ,
                    **program.environment,
                    **self._lifeline.environment(),
                    **monitor.environment(),
                    **self._timing.environment(),
                },
                stdin=asyncio.subprocess.PIPE if program.told else asyncio.subprocess.DEVNULL,
                pass_fds=tuple(program.descriptors),
                start_new_session=True,
            )
            if stream := self._running[program.name].stdin:
                stream.write(program.told.encode() + b"\n")
                stream.close()
            pid = self._running[program.name].pid
            log.debug("started %s as process %d", program.name, pid)
            if program.processes == 1:
                self._watcher.add(Watched(program.name, monitor, self._timing, pid))
            else:
                for rank in range(program.processes):
                    self._watcher.add(Watched(f"rank {rank}", monitor, self._timing, place=rank))
        self._watching = asyncio.create_task(self._watcher.run())

    async def ended(self) -> tuple[str, int]:
        """Wait for the first process to end, then end the rest; answers its name and exit code."""
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
        await self._stop_watching()
        self._awake.release()
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

    def _monitor(self, program: Program) -> Monitor:
        """The monitor of a program, the same for all its starts."""
        if program.name not in self._monitors:
            self._monitors[program.name] = Monitor(self._lifeline.path.parent, program.processes)
        self._monitors[program.name].reset()
        return self._monitors[program.name]

    async def _stop_watching(self) -> None:
        watching, self._watching = self._watching, None
        if watching:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._watcher.drop_all()


class Supervisor:
    def __init__(self, ranks: ProcessGroup, front_end: ProcessGroup, policy: RestartPolicy | None = None) -> None:
        self._groups = {"ranks": ranks, "front end": front_end}
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()

    @property
    def front_end_serves(self) -> bool:
        return self._groups["front end"].serves

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

    async def _keep(self, group: ProcessGroup) -> None:
        restarts = Restarts(self._policy)
        while True:
            try:
                await group.start()
                name, code = await group.ended()
                reason = group.program(name).reason() if code == EXIT_CANNOT_START else ""
                life = group.life(time.monotonic())
            except CannotStartNow as error:
                code, reason, life = EXIT_CANNOT_START, str(error), NEVER_SERVED
            pause = restarts.pause(code, time.monotonic(), life, group.restarts)
            if pause is None:
                raise GaveUp(
                    reason
                    or f"{name} ended {restarts.lost} times in a row, last with {describe_exit(code)}; "
                    "its log lines above say why"
                )
            said = reason or f"{name} ended with {describe_exit(code)}"
            log.warning("%s: starting the %s again%s", said, group.name, f" in {pause:g} s" if pause else "")
            await asyncio.sleep(pause)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
