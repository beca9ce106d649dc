"""The front end's side of the control link: it attends the owner of all models, and has it find, load,
unload, pull and plan them.

While the owner is away the front end goes on by the last table, and tries to reach it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from chorus.messages.calls import own_words, why_failed
from chorus.messages.deploy import report_to_wire, table_from_wire
from chorus.messages.proto import control_pb2 as pb
from chorus.messages.proto.control_pb2_grpc import ControlStub
from chorus.serving.errors import OwnerAway, OwnerRefused, UnknownModel
from chorus.serving.models.directory import Directory, F

log = logging.getLogger(__name__)

_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_REPORT_SECONDS = 0.05
"""Whatever happens between two reports goes into one."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
ASK_SECONDS = 30.0
"""A decision may need the files of a model to be looked at, never their load."""
_LISTED_SECONDS = 10.0

Reply = TypeVar("Reply")


class Owner:
    def __init__(self, address: str, directory: Directory[F]) -> None:
        self._address = address
        self._directory = directory
        self._channel: grpc.aio.Channel | None = None
        self._attending: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._attending = asyncio.create_task(self._attend(), name="attend")

    async def close(self) -> None:
        if self._attending:
            self._attending.cancel()
            await asyncio.gather(self._attending, return_exceptions=True)
        if self._channel:
            await self._channel.close()

    async def find(self, name: str) -> None:
        """Has a model that stands in no table listed, where the owner has one of this name; raises UnknownModel."""
        reply = await self._ask(name, self._stub().Find(pb.FindRequest(name=name), timeout=ASK_SECONDS))
        try:
            await asyncio.wait_for(self._directory.listed(reply.id), _LISTED_SECONDS)
        except TimeoutError:
            raise OwnerAway(f"the model {reply.id} was found, and its owner has not listed it; try again") from None

    async def load(self, name: str, force: bool) -> tuple[str, str]:
        """Which model it is, and what was decided, for people."""
        request = pb.LoadRequest(name=name, force=force)
        reply = await self._ask(name, self._stub().Load(request, timeout=ASK_SECONDS))
        return reply.id, reply.told

    async def unload(self, name: str) -> tuple[str, str]:
        reply = await self._ask(name, self._stub().Unload(pb.UnloadRequest(name=name), timeout=ASK_SECONDS))
        return reply.id, reply.told

    async def pull(self, name: str) -> tuple[str, float]:
        """What was decided, for people, and when the pull began."""
        reply = await self._ask(name, self._stub().Pull(pb.PullRequest(name=name), timeout=ASK_SECONDS))
        return reply.told, reply.started_at

    async def plan(self, name: str, add: Sequence[str]) -> str:
        """JSON: who would hold what, over the machines that there are, and with these on paper besides."""
        reply = await self._ask(name, self._stub().Plan(pb.PlanRequest(name=name, add=add), timeout=ASK_SECONDS))
        return reply.plans

    async def _ask(self, name: str, call: Awaitable[Reply]) -> Reply:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            match error.code():
                case grpc.StatusCode.NOT_FOUND:
                    raise UnknownModel(name, None, own_words(error)) from None
                case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
                    reason = why_failed(error)
                    raise OwnerAway(f"the owner of the models cannot be asked ({reason}); try again") from None
                case _:
                    raise OwnerRefused(why_failed(error)) from None

    async def _attend(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                tables, why = await self._attend_once()
            except Exception:
                log.exception("the owner of the models was not understood")
                tables, why = 0, ""
            if tables:
                log.warning("the owner of the models is away (%s): its last table holds", why)
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _attend_once(self) -> tuple[int, str]:
        """How many tables came, and why no more will."""
        tables, reports = 0, None
        call = self._stub().Attend()
        try:
            async for message in call:
                self._directory.apply(table_from_wire(message))
                tables += 1
                # Not before: the number of a table that another owner has sent means nothing to this one.
                reports = reports or asyncio.create_task(self._report(call))
            return tables, "it has ended the call"
        except grpc.aio.AioRpcError as error:
            return tables, why_failed(error)
        finally:
            if reports:
                reports.cancel()
            call.cancel()

    async def _report(self, call: grpc.aio.StreamStreamCall[pb.Report, pb.Table]) -> None:
        """Counts are read as they are sent, so that none is older than the table that is named beside it."""
        changed = self._directory.changed
        changed.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                report = self._directory.report()
                await call.write(report_to_wire(report.seen, report.demands))
                await asyncio.sleep(_REPORT_SECONDS)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader learns the same, and says so

    def _stub(self) -> ControlStub:
        # Made on first use: a channel belongs to the event loop that runs when it is created.
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        return ControlStub(self._channel)
