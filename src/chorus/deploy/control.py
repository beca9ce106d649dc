"""How commands reach a server on this machine: by a socket in its run folder, which only its user may enter.

The folder goes with the server, or with the next start where the server was killed. A further call is one in
control.proto, one method here, and what it calls as an argument of Control.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc
import grpc.aio

from chorus.cluster.servers import Server, record
from chorus.deploy.groups.registry import Attendance, NoSuchModel, Refused, Registry
from chorus.deploy.handover import FrontEnd
from chorus.errors import ChorusError
from chorus.messages.calls import own_words, why_failed
from chorus.messages.deploy import PullRow, report_from_wire, table_to_wire
from chorus.messages.proto import control_pb2 as wire
from chorus.messages.proto import control_pb2_grpc

log = logging.getLogger("chorus.supervisor")

Replan = Callable[[], Awaitable[str]]
WhatIf = Callable[[str, Sequence[str]], Awaitable[str]]
Reply = TypeVar("Reply")


class NotControlled(ChorusError):
    """The server does not do what it was asked for: says why."""


class Control(control_pb2_grpc.ControlServicer):
    """What a server does for commands and front ends. `replan` answers what changed; None where nothing can be planned
    anew. `what_if` answers as JSON who would hold what of a model with more machines; None where nobody can say."""

    def __init__(
        self,
        server: Server,
        front_end: FrontEnd,
        registry: Registry,
        replan: Replan | None = None,
        what_if: WhatIf | None = None,
    ) -> None:
        self._server = server
        self._front_end = front_end
        self._registry = registry
        self._replan = replan
        self._what_if = what_if
        self._hung_up: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def offered(self) -> AsyncIterator[None]:
        """For as long as this lasts. A server that cannot offer it serves all the same."""
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(self, server)
        try:
            record(self._server)
            server.add_insecure_port(f"unix:{self._server.control_file}")
            await server.start()
            self._server.control_file.chmod(0o600)
        except (OSError, RuntimeError) as error:
            log.warning("commands cannot reach this server: %s", error)
        try:
            yield
        finally:
            await server.stop(None)
            for task in self._hung_up:
                task.cancel()

    def hang_up(self) -> None:
        """What SIGHUP means: restart the front end; whether that went well stands in the log."""
        task = asyncio.create_task(self._restart_unasked())
        self._hung_up.add(task)
        task.add_done_callback(self._hung_up.discard)

    async def _restart_unasked(self) -> None:
        try:
            await self._front_end.restart()
        except ChorusError as error:
            log.warning("SIGHUP: %s", error)

    async def RestartFrontEnd(
        self, request: wire.RestartFrontEndRequest, context: grpc.aio.ServicerContext
    ) -> wire.RestartFrontEndReply:
        done = await _or_refuse(context, self._front_end.restart())
        return wire.RestartFrontEndReply(pid=done.pid, finishing_pid=done.finishing_pid)

    async def Replan(self, request: wire.ReplanRequest, context: grpc.aio.ServicerContext) -> wire.ReplanReply:
        if self._replan is None:
            await _never(context, "this server has no nodes, so there is nothing to plan anew")
        return wire.ReplanReply(told=await _or_refuse(context, self._replan()))

    async def Attend(
        self, reports: AsyncIterator[wire.Report], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.Table]:
        try:
            async with self._registry.attended() as attendance:
                reading = asyncio.create_task(self._read(reports, attendance))
                try:
                    version = 0
                    while True:
                        table = await self._registry.newer(version)
                        version = table.version
                        attendance.first_table = attendance.first_table or version
                        yield table_to_wire(table)
                finally:
                    reading.cancel()
        except Refused as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def _read(self, reports: AsyncIterator[wire.Report], attendance: Attendance) -> None:
        async for message in reports:
            self._registry.heard(attendance, report_from_wire(message))
        attendance.only_looks = attendance.report is None

    async def Find(self, request: wire.FindRequest, context: grpc.aio.ServicerContext) -> wire.FindReply:
        model = await _or_refuse(context, self._registry.find(request.name))
        return wire.FindReply(id=model.id)

    async def Load(self, request: wire.LoadRequest, context: grpc.aio.ServicerContext) -> wire.LoadReply:
        name, told = await _or_refuse(context, self._registry.load(request.name, request.force))
        return wire.LoadReply(id=name, told=told)

    async def Unload(self, request: wire.UnloadRequest, context: grpc.aio.ServicerContext) -> wire.UnloadReply:
        name, told = await _or_refuse(context, self._registry.unload(request.name))
        return wire.UnloadReply(id=name, told=told)

    async def Pull(self, request: wire.PullRequest, context: grpc.aio.ServicerContext) -> wire.PullReply:
        async def begin() -> PullRow:
            return self._registry.pulls.start(request.name)

        begun = await _or_refuse(context, begin())
        return wire.PullReply(told=f"{begun.name} is being pulled", started_at=begun.started_at)

    async def Plan(self, request: wire.PlanRequest, context: grpc.aio.ServicerContext) -> wire.PlanReply:
        if self._what_if is None:
            await _never(context, "what the machines of this server have is told by nobody, so nothing can be planned")
        return wire.PlanReply(plans=await _or_refuse(context, self._what_if(request.name, request.add)))


async def _or_refuse(context: grpc.aio.ServicerContext, work: Awaitable[Reply]) -> Reply:
    try:
        return await work
    except ChorusError as error:
        unknown = isinstance(error, NoSuchModel)
        await context.abort(grpc.StatusCode.NOT_FOUND if unknown else grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort always raises") from None


async def _never(context: grpc.aio.ServicerContext, reason: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)
    raise AssertionError("abort always raises")


async def ask(server: Path, call: Callable[[control_pb2_grpc.ControlStub], Awaitable[Reply]]) -> Reply:
    """Call a server; raises NotControlled with its reason where it refuses."""
    async with grpc.aio.insecure_channel(f"unix:{server}") as channel:
        try:
            return await call(control_pb2_grpc.ControlStub(channel))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise NotControlled("the server did not answer in time; its log says what it does") from None
            raise NotControlled(own_words(error) or f"the server does not answer: {why_failed(error)}") from None
