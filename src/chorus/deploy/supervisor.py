"""Starts the processes of a served model, keeps them alive and ends them all, however this process ends.

A front end that dies is started again and the engine keeps the model. A rank that dies is started again alone where its
transport lets the others go on, else the group is started anew. A process that shows no sign of life is killed, and has
died then like any other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from chorus.deploy.room import Bytes, Need
from chorus.errors import ChorusError
from chorus.platform.awake import Awake
from chorus.platform.process import signals
from chorus.platform.process.beats import Beat, Monitor
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.losses import Loss, gravest, loss_of_exit, passed_on
from chorus.platform.process.restarts import NEVER_SERVED, Life, RestartPolicy, Restarts, describe_exit
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.process.watcher import Watched, Watcher
from chorus.platform.storage.filelimit import raise_file_limit
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger("chorus.supervisor")


_AS_ASKED = {0, -signal.SIGTERM}
"""How processes end that we asked to."""
_SIGNALLED = 128
"""A program that starts others tells the signal that ended one of them as a shell does."""

LEADER = "engine"
"""What the program of rank 0 is called."""
_LOOK_SECONDS = 0.2
"""How often to look whether what was lost serves again."""

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
    alone: bool = False
    """Whether the others of its group go on when it ends, so that it is started again alone."""

    def reason(self) -> str:
        if self.failure_file and self.failure_file.is_file():
            return self.failure_file.read_text().strip()
        return f"{self.name} cannot start; its last log line says why"


class GaveUp(ChorusError):
    """A process keeps ending; says which, how, and where to look."""


class TooLittleRoom(GaveUp):
    """It does not fit into what memory is left just now; says what is missing, and where."""

    def __init__(self, told: str, missing: tuple[Need, ...] = ()) -> None:
        """`missing`: how much more must be left, as far as somebody could say."""
        super().__init__(told)
        self.missing = missing or (Need(1),)


class CannotStartNow(ChorusError):
    """What served before cannot be started this time; says why."""


@dataclass
class _Member:
    """One start of a program."""

    process: asyncio.subprocess.Process
    watched: tuple[Watched, ...]
    started_at: float
    killed: bool = False
    """Whether it had to be, since it did not end when it was asked to."""

    @property
    def served_at(self) -> float | None:
        return self.watched[0].served_at


class ProcessGroup:
    """Processes that serve together: the ranks of one model, its leader first, or a front end alone.

    Whoever keeps a group calls `start`, `ended` and `start` again, until it calls `stop`. `start` starts what does not
    run; `ended` waits until one process has ended. Then the others go on if that one is `alone`, unless it is the
    leader and says that its group is broken; else all have been ended, and the next `start` is one of all of them.
    The process that takes another one's place is told how that one was lost.

    A subclass with processes elsewhere keeps to that: it starts those that do not run in its `start`, waits for them
    beside ours in its `ended`, and ends them in its `stop`. It says with `note_loss` how ours shall hear of theirs,
    and its `program` knows their names too.
    """

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
        self._running: dict[str, _Member] = {}
        """Those whose end `ended` has not told yet."""
        self._latest: dict[str, _Member] = {}
        self._losses: dict[str, Loss] = {}
        """How the process of each program that ran before the present one was lost."""
        self._watcher = Watcher()
        self._monitors: dict[str, Monitor] = {}
        self._watching: asyncio.Task[None] | None = None
        self._started_at = 0.0
        self._served_before = False
        self._awake = Awake()
        self.ends = False
        """Whoever keeps it is about to end it: nothing of it is started again."""

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

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self._running.values())

    def signal(self, number: signal.Signals) -> None:
        for member in self._running.values():
            signals.send(member.process, number)

    @property
    def has_served(self) -> bool:
        """Whether every process ever did at the same time."""
        return self._served_before or self._watcher.served_at is not None

    @property
    def goes_on(self) -> bool:
        """Whether something of it still runs."""
        return bool(self._running)

    def life(self, now: float, name: str = "") -> Life:
        """How long the last start, of all or of one process, took until all served, and how long they have since."""
        member = self._latest.get(name)
        started_at = member.started_at if member else self._started_at
        served_at = (member.served_at if member else self._watcher.served_at) or now
        delivered = sum(monitor.delivered for monitor in self._monitors.values())
        return Life(served_at - started_at, now - served_at, delivered)

    async def start(self) -> None:
        """Start what does not run."""
        if not self._running:
            self._served_before = self.has_served
            self._started_at, self._watcher = time.monotonic(), Watcher()
            raise_file_limit()  # what is started inherits it
            self._awake.hold()
        for program in self._programs:
            if program.name not in self._running:
                self._running[program.name] = self._latest[program.name] = await self._start(program)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watcher.run())

    async def ended(self) -> tuple[str, int]:
        """Wait for the first process to end, and end the rest unless they go on; answers its name and exit code. Of
        several at once it is one that did not end for another's sake.
        """
        waits = {asyncio.create_task(member.process.wait()): name for name, member in self._running.items()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        ends = [(waits[task], task.result()) for task in waits if task in done]
        name, code = min(ends, key=lambda end: passed_on(end[1]))
        if self.program(name).alone and not (code == EXIT_RANK_LOST and name == self._programs[0].name):
            member = self._running.pop(name)
            for watched in member.watched:
                self._watcher.drop(watched)
            if code != EXIT_CANNOT_START:
                self.note_loss(self._loss(name, code), name)
        else:
            losses = await self._end_all(name, code)
            if code != EXIT_CANNOT_START:
                self.note_loss(gravest(losses))
        return name, code

    def note_loss(self, loss: Loss, name: str | None = None) -> None:
        """Tell the next process of this name how the one before was lost; without a name, every one's."""
        for each in (program.name for program in self._programs) if name is None else (name,):
            self._losses[each] = gravest((*self._unsettled(each), loss))

    def loss_of(self, name: str) -> Loss | None:
        """How the process of this name that ran before was lost, as the next one is told."""
        return self._losses.get(name)

    async def stop(self) -> None:
        """Ask, wait, then kill: bounded by the grace time."""
        await self._stop_watching()
        self._awake.release()
        alive = [member for member in self._running.values() if member.process.returncode is None]
        for member in alive:
            signals.send(member.process, signal.SIGTERM)
        if alive:
            _, late = await asyncio.wait(
                [asyncio.create_task(member.process.wait()) for member in alive], timeout=self._grace
            )
            for member in alive:
                if member.process.returncode is None:
                    log.warning("process %d did not end within %g s: killing it", member.process.pid, self._grace)
                    member.killed = True
                    signals.send(member.process, signal.SIGKILL)
            if late:
                await asyncio.wait(late)
        self._running.clear()

    detail = ""
    """What it does before its processes can tell anything themselves."""

    @property
    def members(self) -> tuple[str, ...]:
        """The machines of its ranks in their order, where it has chosen them itself."""
        return ()

    @property
    def booked(self) -> Bytes:
        """What it has booked itself, on each of them."""
        return {}

    @property
    def beats(self) -> tuple[Beat, ...]:
        """What its processes say of themselves."""
        return tuple(watched.beat for member in self._running.values() for watched in member.watched)

    def close(self) -> None:
        """Give back what was kept for its next start, once it has stopped for good."""
        for monitor in self._monitors.values():
            monitor.close()
        self._monitors.clear()
        self._latest.clear()

    async def _start(self, program: Program) -> _Member:
        monitor = self._monitor(program)
        loss = self._losses.get(program.name)
        process = await asyncio.create_subprocess_exec(
            *program.arguments,
            env={
                **QUIET,
                **os.environ,
                **program.environment,
                **self._lifeline.environment(),
                **monitor.environment(),
                **self._timing.environment(),
                **(loss.environment() if loss else {}),
            },
            stdin=asyncio.subprocess.PIPE if program.told else asyncio.subprocess.DEVNULL,
            pass_fds=tuple(program.descriptors),
            start_new_session=True,
        )
        if process.stdin:
            process.stdin.write(program.told.encode() + b"\n")
            process.stdin.close()
        log.debug("started %s as process %d", program.name, process.pid)
        if program.processes == 1:
            watched = [Watched(program.name, monitor, self._timing, process.pid)]
        else:
            ranks = range(program.processes)
            watched = [Watched(f"rank {rank}", monitor, self._timing, place=rank) for rank in ranks]
        for each in watched:
            self._watcher.add(each)
        return _Member(process, tuple(watched), time.monotonic())

    async def _end_all(self, name: str, code: int) -> list[Loss]:
        """End the rest; answers how that process was lost, and whatever else went wrong with or before it.

        Whoever ended for another's sake is named last: the system may tell of the other one later.
        """
        members = dict(self._running)
        asked = {each for each, member in members.items() if member.process.returncode is None}
        await self.stop()
        ends = {name: code}
        for each, member in members.items():
            told = member.process.returncode or 0
            if each != name and not (each in asked and (member.killed or told in _AS_ASKED)):
                ends[each] = told
        losses = [self._loss(each, ends[each]) for each in sorted(ends, key=lambda each: passed_on(ends[each]))]
        return [*losses, *(loss for each in members for loss in self._unsettled(each))]

    def _loss(self, name: str, code: int) -> Loss:
        program, watched = self.program(name), self._latest[name].watched
        if killed := next((each for each in watched if each.death), None):
            return loss_of_exit(killed.name, code, death=killed.death)
        if program.processes > 1 and code > _SIGNALLED:
            code = _SIGNALLED - code
        return loss_of_exit(name, code, self._watcher.memory_kills.lately(time.monotonic()))

    def _unsettled(self, name: str) -> tuple[Loss, ...]:
        """What the present process of a program was told, if it was lost before all served again."""
        member, told = self._latest.get(name), self._losses.get(name)
        return (told,) if told and member and member.served_at is None else ()

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


class Counts:
    """The restarts of a group: of each process that is started again alone, and of all together."""

    def __init__(self, group: ProcessGroup, policy: RestartPolicy) -> None:
        self._group = group
        self._policy = policy
        self._restarts: dict[str, Restarts] = {}

    def of(self, name: str) -> Restarts:
        """What counts for a process of the group, or where there is no name, for a start that failed before any."""
        counted = name if name and self._group.program(name).alone else ""
        # What is lost for the first time may have been ended with the others before: it has run if they have.
        ran = self._group.has_served or bool(self._restarts)
        return self._restarts.setdefault(counted, Restarts(self._policy, ran))


class Keeper(Protocol):
    """Has something running for as long as it is asked to."""

    async def run(self) -> None:
        """Until cancelled; raises GaveUp."""

    def will_end(self) -> None:
        """The server ends: from now on nothing is started, and nothing again."""

    async def stop(self) -> None:
        """End it in order."""


class Kept:
    """A group whose processes are started again when they end."""

    def __init__(
        self, group: ProcessGroup, policy: RestartPolicy | None = None, label: str = "", model: str = ""
    ) -> None:
        """`label` stands before what is logged, where there are several groups; `model` is what a group of ranks
        serves, for those who read of it later.
        """
        self._group = group
        self._policy = policy or RestartPolicy()
        self._label = f"{label}: " if label else ""
        self._told = ToldLosses(group, model) if model else None
        self._returning: asyncio.Task[None] | None = None

    def will_end(self) -> None:
        self._group.ends = True
        self._stop_expecting()

    async def run(self) -> None:
        """Until cancelled, or until something is lost that is not to be started again."""
        try:
            await self._keep()
        finally:
            self._stop_expecting()

    async def _keep(self) -> None:
        group = self._group
        counts = Counts(group, self._policy)
        while not group.ends:
            name = ""
            try:
                await group.start()
                self._expect_return()
                name, code = await group.ended()
                reason = group.program(name).reason() if code == EXIT_CANNOT_START else ""
                life = group.life(time.monotonic(), name)
            except CannotStartNow as error:
                code, reason, life = EXIT_CANNOT_START, str(error), NEVER_SERVED
            if group.ends:
                return
            restarts = counts.of(name)
            pause = restarts.pause(code, time.monotonic(), life, group.restarts)
            if pause is None:
                raise GaveUp(
                    reason
                    or f"{name} ended {restarts.lost} times in a row, last with {describe_exit(code)}; "
                    "its log lines above say why"
                )
            said = self._label + (reason or f"{name} ended with {describe_exit(code)}")
            what = "it" if group.goes_on else f"the {group.name}"
            log.warning("%s: starting %s again%s", said, what, f" in {pause:g} s" if pause else "")
            self._tell_loss(name, reason or f"{name} ended with {describe_exit(code)}", what)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        await self._group.stop()

    def _tell_loss(self, name: str, why: str, what: str) -> None:
        if self._told:
            self._told.lost(name, why, what)
        else:
            loss = self._group.loss_of(name)
            tell(events.FRONT_END_LOST, why=loss.told if loss else why)

    def _expect_return(self) -> None:
        self._stop_expecting()
        if self._told and self._told.returns:
            self._returning = asyncio.create_task(self._tell_return(self._told))

    def _stop_expecting(self) -> None:
        if self._returning:
            self._returning.cancel()
            self._returning = None

    async def _tell_return(self, told: ToldLosses) -> None:
        """Tell when all serve again, unless something else is lost before."""
        while not self._group.serves:
            await asyncio.sleep(_LOOK_SECONDS)
        told.serves()


class ToldLosses:
    """Writes down what the ranks of a model lose, and when all of them serve again."""

    def __init__(self, group: ProcessGroup, model: str) -> None:
        self._group = group
        self._model = model
        self._lost_at: float | None = None
        """When what was served was lost, until it is served again."""

    @property
    def returns(self) -> bool:
        """Whether that all serve again would be news."""
        return self._lost_at is not None

    def lost(self, name: str, why: str, what: str) -> None:
        """The process of this name, in whose place `what` is started again."""
        loss, (rank, node) = self._group.loss_of(name), rank_of(name)
        if rank == 0 or not self._group.goes_on:  # of another one's return its leader tells, which knows more of it
            self._lost_at = self._lost_at or time.monotonic()
        cause, why = (loss.cause, loss.told) if loss else ("", why)
        tell(events.RANK_LOST, model=self._model, node=node, rank=rank, cause=cause, why=why, what=what)

    def serves(self) -> None:
        if self._lost_at is not None:
            tell(events.SERVES_AGAIN, model=self._model, seconds=time.monotonic() - self._lost_at)
            self._lost_at = None


def rank_of(name: str) -> tuple[int | None, str]:
    """The rank that a process of a group is, and the node that it is on, where its name says so."""
    if name == LEADER:
        return 0, ""
    found = re.fullmatch(r"rank (\d+)(?: on (.+))?", name)
    return (int(found[1]), found[2] or "") if found else (None, "")


class Supervisor:
    """Runs what makes up a server until it is told to stop, or one part gives up."""

    def __init__(self, *keepers: Keeper) -> None:
        self._keepers = keepers
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        if not self._stopping.is_set():
            log.info("the server ends: nothing is started any more")
            self._tell_the_end()
            self._stopping.set()

    def _tell_the_end(self) -> None:
        for keeper in self._keepers:
            keeper.will_end()

    async def run(self, on_start: Callable[[], object] | None = None) -> None:
        """Run until `stop`, or raise GaveUp. Leaves nothing behind either way; what was given last ends first."""
        running = [asyncio.create_task(keeper.run()) for keeper in self._keepers]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            if on_start:
                on_start()
            done, _ = await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._tell_the_end()
            for task in (*running, stopped):
                task.cancel()
            await asyncio.gather(*running, stopped, return_exceptions=True)
            for keeper in reversed(self._keepers):
                await keeper.stop()
