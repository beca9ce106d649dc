"""The engine of one loaded model: started, watched, what was lost of it started again, stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc

from chorus.config.sections import RecoveryConfig
from chorus.deploy.supervisor import Counts, ProcessGroup, Program, ToldLosses
from chorus.localai.errors import LoadFailed, NotServing
from chorus.messages.engine import Pooling
from chorus.messages.proto import engine_pb2 as pb
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import RestartPolicy, describe_exit
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import EngineLost
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long the ranks may take to end when asked, before they are killed."""
REFUSED_WITHIN_SECONDS = 300.0
"""A try that took longer has waited for a rank, and may wait again; only those that fail at once are counted."""
_LOOK_SECONDS = 0.05
"""How often the engine is asked whether it serves yet: it answers, but does not tell by itself."""
_DESCRIBE_SECONDS = 2.0


Answer = TypeVar("Answer")


class HostState(Enum):
    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"
    FAILED = "failed"


@dataclass(frozen=True)
class EngineLaunch:
    """What to run for one model, and where it answers."""

    address: str
    programs: Sequence[Program]
    start_seconds: float
    """After this long a start is taken for stuck, whatever the ranks themselves think."""
    timing: WatchTimes = DEFAULTS


Launcher = Callable[[Path], EngineLaunch]
"""Given a private folder for sockets and files, says what to run there."""


class EngineHost:
    """Owns the processes. `start` returns when the model serves; a later loss is mended in the background."""

    def __init__(
        self,
        launcher: Launcher,
        policy: RestartPolicy | None = None,
        recovery: RecoveryConfig | None = None,
        model: str = "",
    ) -> None:
        """`model` is what is served, for those who read of its losses."""
        self.state = HostState.STARTING
        self.detail = "starting"
        self._lifeline = Lifeline()
        launch = launcher(self._lifeline.path.parent)
        self.client = EngineClient(launch.address, recovery=recovery, model=model)
        self._start_seconds = launch.start_seconds
        self._group = ProcessGroup("ranks", launch.programs, self._lifeline, STOP_SECONDS, launch.timing)
        self.model = model
        self._told = ToldLosses(self._group, model)
        self._policy = policy or RestartPolicy(refused_within_seconds=REFUSED_WITHIN_SECONDS)
        self._has_served = False
        self._changed = asyncio.Condition()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> pb.Description:
        """Raises LoadFailed with the reason of every rank that failed. Whoever starts it must also stop it."""
        self._keeper = asyncio.create_task(self._keep(), name="engine-keeper")
        async with self._changed:
            await self._changed.wait_for(lambda: self.state in (HostState.READY, HostState.FAILED))
        if self.state is HostState.FAILED:
            raise LoadFailed(self.detail)
        return await self.describe()

    async def describe(self) -> pb.Description:
        return await self._asked(self.client.describe(_DESCRIBE_SECONDS))

    async def embed(self, prompt: Sequence[int], pooling: Pooling, seconds: float) -> tuple[float, ...]:
        return await self._asked(self.client.embed(prompt, pooling, seconds))

    async def _asked(self, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        except EngineLost as error:
            raise NotServing(str(error)) from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # A channel that is closed takes its calls with it, as if whoever waits for them had been cancelled.
            if (waiting := asyncio.current_task()) and waiting.cancelling():
                raise
            raise NotServing("the model was freed meanwhile") from None

    async def stop(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._enter(HostState.FAILED, "the model was freed")
        await self.client.close("the model was freed meanwhile")
        await self._group.stop()
        self._lifeline.cut()

    async def _keep(self) -> None:
        counts = Counts(self._group, self._policy)
        while True:
            try:
                await self._group.start()
            except OSError as error:
                return await self._enter(HostState.FAILED, f"the ranks cannot be started: {error}")
            served, name, reason = await self._run_once()
            now, restarts = time.monotonic(), counts.of(name)
            pause = restarts.pause(
                EXIT_RANK_LOST if served else EXIT_CANNOT_START, now, self._group.life(now, name), self._group.restarts
            )
            if pause is None:
                again = f" ({restarts.lost} times started again)" if restarts.lost else ""
                if self._has_served:  # a load that fails is told by whoever asked for it
                    tell(events.MODEL_FAILED, model=self.model, why=f"{reason}{again}")
                return await self._enter(HostState.FAILED, f"{reason}{again}")
            what = "it" if self._group.goes_on else f"the {self._group.name}"
            log.warning("%s; starting %s again%s", reason, what, f" in {pause:g} s" if pause else "")
            self._told.lost(name, reason, what)
            await self._enter(HostState.RECOVERING, reason)
            await asyncio.sleep(pause)

    async def _run_once(self) -> tuple[bool, str, str]:
        """From a started group to the end of a process: whether it served, which process that was, and why it ended."""
        ended = asyncio.create_task(self._group.ended())
        ready = asyncio.create_task(self._until_ready())
        try:
            await asyncio.wait({ended, ready}, timeout=self._start_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not ready.done():
                # A rank that waits for others inside a collective never returns by itself.
                await self._group.stop()
                told = f"the ranks did not form a group within {self._start_seconds:g} s"
                return False, "", f"{told} (engine.start_timeout_seconds is a part of it): {self.detail}"
            served = ready.done() and not ended.done()
            if served:
                self._has_served = True
                self._told.serves()
                await self._enter(HostState.READY, "ready")
            name, code = await ended
            return served, name, self._group_reason(name, code)
        finally:
            for task in (ended, ready):
                task.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)

    async def _until_ready(self) -> None:
        # The engine answers Describe while it loads.
        while True:
            try:
                seen = await self.client.describe(_DESCRIBE_SECONDS)
                self.detail = f"{seen.detail} ({seen.progress:.0%})" if seen.state == pb.LOADING else seen.detail
                if seen.state == pb.READY:
                    return
            except EngineLost:
                pass
            await asyncio.sleep(_LOOK_SECONDS)

    async def _enter(self, state: HostState, detail: str) -> None:
        if state is HostState.FAILED:
            # Whoever waits for the group to come back need not wait any longer.
            self.client.recovery.give_up(f"the engine was given up: {detail}; load the model again")
        async with self._changed:
            self.state, self.detail = state, detail
            self._changed.notify_all()

    def _group_reason(self, name: str, code: int) -> str:
        if code == EXIT_CANNOT_START:
            return self._group.program(name).reason()
        return f"{name} ended with {describe_exit(code)}"
