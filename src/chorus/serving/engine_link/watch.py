"""Hears once a second what an engine counts, and from the next one when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from chorus.messages.calls import why_failed
from chorus.messages.figures import figures_from_wire
from chorus.messages.proto import engine_pb2 as pb
from chorus.messages.proto.engine_pb2_grpc import EngineStub
from chorus.telemetry.metrics.engines import EngineFigures

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class EngineWatch:
    """Nobody waits for it: what it heard last is there for whoever asks."""

    def __init__(self, stub: Callable[[], EngineStub], heard: EngineFigures) -> None:
        self._stub = stub
        self._heard = heard
        self._engine = 0.0
        """Which one told last, by when it started."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="engine-watch")

    def stop(self) -> None:
        """For good: the engine is gone, and none will come in its place."""
        if self._task:
            self._task.cancel()
        self._heard.lose(self._engine)

    async def _listen(self) -> None:
        while True:
            try:
                async for told in self._stub().Watch(pb.WatchRequest()):
                    self._engine = told.started_at
                    self._heard.take(told.started_at, figures_from_wire(told))
            except grpc.aio.AioRpcError as error:
                log.debug("the engine tells nothing of itself: %s", why_failed(error))
            self._heard.lose(self._engine)
            await asyncio.sleep(AGAIN_SECONDS)
