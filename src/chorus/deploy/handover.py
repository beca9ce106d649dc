"""A front end that can be replaced while it serves: the next one accepts on the same sockets, the old one finishes."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from chorus.config.front_end import FINISH
from chorus.config.sections import Limits
from chorus.deploy.supervisor import ProcessGroup, Program
from chorus.errors import ChorusError
from chorus.platform.process.exits import EXIT_CANNOT_START
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.losses import Loss
from chorus.platform.process.restarts import Life, describe_exit
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger("chorus.supervisor")

START_SECONDS = 120.0
"""For a front end to serve: longer than a slow disk takes for its libraries and its tokenizer."""
_LOOK_SECONDS = 0.1


class CannotRestart(ChorusError):
    """The front end stays as it is; says why, and what to do."""


@dataclass(frozen=True)
class Handover:
    pid: int
    """Of the one that accepts now."""
    finishing_pid: int


@dataclass(frozen=True)
class _Start:
    """One start of a front end, and the task that waits for its end."""

    group: ProcessGroup
    pid: int
    end: asyncio.Task[tuple[str, int]]


class FrontEnd(ProcessGroup):
    """To a supervisor a group like any other. At most two of its processes live at a time: the one that serves, and
    either the next one or the one before."""

    def __init__(self, program: Program, lifeline: Lifeline, limits: Limits, timing: WatchTimes = DEFAULTS) -> None:
        grace = limits.shutdown_grace_seconds + 2
        super().__init__("front end", [program], lifeline, grace, timing)
        self._places = tuple(ProcessGroup(self.name, [program], lifeline, grace, timing) for _ in range(2))
        # It ends by itself after the time that a request may take, and the time to tell those that are left.
        self._finish_seconds = limits.request_timeout_seconds + grace
        self._current: _Start | None = None
        self._finishing: _Start | None = None
        self._handing_over: asyncio.Task[Handover] | None = None
        self._seeing_off: asyncio.Task[None] | None = None
        self._replaced = asyncio.Event()

    @property
    def serves(self) -> bool:
        return self._current is not None and self._current.group.serves

    @property
    def has_served(self) -> bool:
        return any(place.has_served for place in self._places)

    def life(self, now: float, name: str = "") -> Life:
        return self._current.group.life(now, name) if self._current else super().life(now, name)

    def loss_of(self, name: str) -> Loss | None:
        return self._current.group.loss_of(name) if self._current else None

    async def start(self) -> None:
        self._current = await self._begin()

    async def ended(self) -> tuple[str, int]:
        """Wait for the end of the one that serves; one that was replaced, or that is about to be, does not count."""
        while True:
            assert self._current is not None
            current = self._current
            self._replaced.clear()
            replaced = asyncio.create_task(self._replaced.wait())
            try:
                await asyncio.wait([current.end, replaced], return_when=asyncio.FIRST_COMPLETED)
                if self._handing_over:
                    await asyncio.wait([self._handing_over])
            finally:
                replaced.cancel()
            if current is self._current:
                return current.end.result()

    async def stop(self) -> None:
        tasks = [task for task in (self._handing_over, self._seeing_off) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(_end(start) for start in (self._current, self._finishing) if start))
        self._current = self._finishing = None

    async def restart(self) -> Handover:
        """Start another one, and have this one finish once that serves. Raises CannotRestart where nothing changed."""
        if self.ends:
            raise CannotRestart("the server ends: no other front end is started")
        if self._handing_over:
            raise CannotRestart("a front end is being started already: wait until it serves")
        if self._finishing:
            raise CannotRestart(
                f"the front end before this one (process {self._finishing.pid}) still finishes its streams: "
                "try again when it has ended"
            )
        if self._current is None or not self.serves:
            raise CannotRestart("the front end does not serve at the moment; it is being started anyway")
        self._handing_over = asyncio.create_task(self._hand_over(self._current))
        try:
            return await self._handing_over
        finally:
            self._handing_over = None

    async def _hand_over(self, old: _Start) -> Handover:
        new = await self._begin()
        try:
            await self._wait_until_it_serves(new)
        except BaseException:
            await _end(new)
            raise
        self._current = new
        self._replaced.set()
        if not old.end.done():
            self._finishing = old
            old.group.signal(FINISH)
            self._seeing_off = asyncio.create_task(self._see_off(old))
        log.info("front end: process %d accepts now, process %d finishes its streams", new.pid, old.pid)
        tell(events.FRONT_END_REPLACED, pid=new.pid, finishing=old.pid)
        return Handover(new.pid, old.pid)

    async def _begin(self) -> _Start:
        taken = [start.group for start in (self._current, self._finishing) if start and not start.end.done()]
        group = next(place for place in self._places if place not in taken)
        await group.start()
        (pid,) = group.pids
        return _Start(group, pid, asyncio.create_task(group.ended()))

    async def _wait_until_it_serves(self, new: _Start) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not new.group.serves:
            if new.end.done():
                name, code = new.end.result()
                reason = self.program(name).reason() if code == EXIT_CANNOT_START else describe_exit(code)
                raise CannotRestart(f"the next front end did not start, the one before goes on: {reason}")
            if time.monotonic() > deadline:
                raise CannotRestart(
                    f"the next front end did not serve within {START_SECONDS:g} s, the one before goes on"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _see_off(self, old: _Start) -> None:
        await asyncio.wait([old.end], timeout=self._finish_seconds)
        if not old.end.done():
            log.warning("process %d did not finish within %g s: ending it", old.pid, self._finish_seconds)
            await _end(old)
        elif code := old.end.result()[1]:
            log.warning("the front end before this one ended with %s: its streams are lost", describe_exit(code))
        self._finishing = None


async def _end(start: _Start) -> None:
    start.end.cancel()
    await asyncio.gather(start.end, return_exceptions=True)
    await start.group.stop()
