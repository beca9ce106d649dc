"""The processes of one loaded model: started, kept alive, watched until they serve, and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from chorus.config.front_end import ModelSettings
from chorus.config.served import ModelConfig
from chorus.deploy.groups.booking import Needs
from chorus.deploy.room import Bytes
from chorus.deploy.supervisor import Kept, ProcessGroup
from chorus.messages.proto import engine_pb2 as wire
from chorus.messages.proto import engine_pb2_grpc
from chorus.models import Progress

# The engine answers what it is doing, but does not tell by itself; a bar needs no more looks than this.
LOOK_EVERY_SECONDS = 0.2
_ANSWER_SECONDS = 2.0
FOLLOW_SECONDS = 1.0
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))

Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Loadable:
    """A model that was found and planned: what it takes, and what makes its processes."""

    settings: ModelSettings
    ranks: int
    make: Callable[[int], ProcessGroup]
    """From the bytes that were booked for it; 0: none were."""
    needs: Needs | None = None
    """None: somebody else books its memory, or nobody does."""
    nodes: tuple[str, ...] = ()


class Maker(Protocol):
    """Finds models and says how they are loaded: here, over nodes, or by hand. What it is called with is the model's
    number among those of this server.
    """

    def expected(self, entry: ModelConfig, number: int) -> ModelSettings:
        """What can be told of a model before anybody has looked for it."""

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        """Look for a model, fetch what is missing of it and plan it; raises ChorusError."""

    def clear(self, number: int) -> None:
        """Remove what the processes of a model have left."""


class Group:
    """One load of a model, from its first process to its last."""

    def __init__(self, loadable: Loadable, booked: int, label: str, changed: Callable[[], None]) -> None:
        """`changed` is called whenever there is something new to show; `label` stands before what is logged."""
        self._address = loadable.settings.engine_address
        self._processes = loadable.make(booked)
        self._kept = Kept(self._processes, label=label, model=loadable.settings.id)
        self._changed = changed
        self._ending = asyncio.Event()
        self._leaving: asyncio.Task[None] | None = None
        self.ready = False
        self.detail = "starting the engine"
        self.progress = 0.0
        self.loaded_bytes = 0
        self.total_bytes = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The machines of its ranks, where those were chosen when it was started."""
        return self._processes.members

    @property
    def booked(self) -> Bytes:
        """What it has booked itself."""
        return self._processes.booked

    def end(self) -> None:
        """Have `run` return."""
        self._ending.set()

    def will_end(self) -> None:
        """The server ends: serve on for those whose answers are under way, but start nothing again."""
        self._kept.will_end()
        self._leaving = self._leaving or asyncio.create_task(self._end_once_lost())

    async def _end_once_lost(self) -> None:
        """A leader that loads, or waits for a rank to come back, does so for nobody."""
        while self._processes.serves:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        self.end()

    async def run(self) -> None:
        """Until `end`; raises GaveUp. Leaves no process behind either way."""
        keeping = asyncio.create_task(self._kept.run())
        watching = asyncio.create_task(self._watch())
        ending = asyncio.create_task(self._ending.wait())
        try:
            waits = {keeping, watching, ending}
            while not (keeping.done() or ending.done()):
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if watching in done:
                    watching.result()
            if keeping.done() and not self._ending.is_set():
                keeping.result()
        finally:
            tasks = [keeping, watching, ending, *([self._leaving] if self._leaving else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._processes.stop()
            self._processes.close()

    async def _watch(self) -> None:
        """Ask until a request would be answered; from then on the processes' own signs of life are looked at."""
        async with grpc.aio.insecure_channel(self._address, _CHANNEL_OPTIONS) as channel:
            engine = engine_pb2_grpc.EngineStub(channel)
            answered = False
            while not self.ready:
                # Waits for the engine's socket by itself; an engine that goes away meanwhile is asked again.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    seen = await engine.Describe(wire.DescribeRequest(), timeout=_ANSWER_SECONDS, wait_for_ready=True)
                    self.detail, self.progress, self.ready = seen.detail, seen.progress, seen.state == wire.READY
                    beats = self._processes.beats
                    self.loaded_bytes = sum(beat.loaded_bytes for beat in beats)
                    self.total_bytes = sum(beat.total_bytes for beat in beats)
                    self._changed()
                    answered = True
                if not answered and self._processes.detail not in ("", self.detail):
                    self.detail = self._processes.detail
                    self._changed()
                if not self.ready:
                    await asyncio.sleep(LOOK_EVERY_SECONDS)
        await self._follow()

    async def _follow(self) -> None:
        """Look whether it is on other machines than before, where it chooses them itself."""
        seen = self.nodes, self.booked
        while self.nodes:
            await asyncio.sleep(FOLLOW_SECONDS)
            if (now := (self.nodes, self.booked)) != seen:
                seen = now
                self._changed()
