"""The engine's gRPC face. Runs on an event loop of its own thread; the leader's loop owns the main thread and MLX."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import grpc.aio

from chorus.engine.figures import at_rest
from chorus.engine.leader import Cancel, ClearCache, Command, Submit
from chorus.engine.ranks.tracing import CannotTrace
from chorus.messages.calls import why_failed
from chorus.messages.engine import (
    Finish,
    Progress,
    Request,
    embedding_from_wire,
    progress_to_wire,
    request_from_wire,
)
from chorus.messages.grammar import Grammar, GrammarError, TooManyGrammars
from chorus.messages.proto import engine_pb2 as wire
from chorus.messages.proto import engine_pb2_grpc
from chorus.platform.process import beats
from chorus.platform.storage.paths import check_socket_path
from chorus.text.grammar.client import Constraint

log = logging.getLogger("chorus.engine")

MAX_MESSAGE = 64 << 20
LEAVE_SECONDS = 2.0
MAX_UNREAD_EVENTS = 10_000
"""A front end that reads nothing for this many steps is taken for dead."""
WATCH_SECONDS = 1.0
"""How often whoever watches is told what is counted."""
REST_SECONDS = 10.0
"""How often while nothing happens: a front end that nobody asks for anything shall sleep."""
CLEAR_SECONDS = 30.0
"""The leader takes a command between two steps; one that is stuck for longer is somebody else's to notice."""

EMBED_CODES = {
    wire.REJECTED: grpc.StatusCode.INVALID_ARGUMENT,
    wire.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    wire.CANCELLED: grpc.StatusCode.CANCELLED,
    wire.FAILED: grpc.StatusCode.INTERNAL,
}


class EngineFace(Protocol):
    """What the service needs of the engine behind it. Called from the service's own threads."""

    def post(self, command: Command) -> bool:
        """Whether it was taken: an engine that loads or is about to end takes nothing."""
        ...

    def describe(self) -> wire.Description: ...
    def figures(self) -> wire.Figures: ...
    def trace(self, steps: int, seconds: float) -> AsyncGenerator[wire.TraceReply, None]:
        """Raises CannotTrace."""
        ...

    async def open_grammar(
        self, grammar: Grammar, stop_tokens: frozenset[int], answered: tuple[int, ...]
    ) -> Constraint | None:
        """None: an engine that loads has no vocabulary yet."""
        ...


@dataclass
class OpenSession:
    number: int
    events: asyncio.Queue[wire.Event | None] = field(default_factory=lambda: asyncio.Queue(MAX_UNREAD_EVENTS))
    open: set[str] = field(default_factory=set)
    compiling: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Requests whose grammar is not ready yet: nobody else waits for it, and a cancel ends it."""
    refusal: str = ""
    """Why it was closed, where that was the engine's doing."""

    def named(self, request: Request) -> Request:
        """Ids are unique within a session; with its number, over all of them."""
        return replace(request, id=f"{self.number}:{request.id}")


class EngineService(engine_pb2_grpc.EngineServicer):
    """Answers Describe from `describe` and passes requests to `post`; ids are made unique over all sessions."""

    def __init__(self, engine: EngineFace) -> None:
        self._post = engine.post
        self._engine = engine
        self._numbers = itertools.count(1)
        self._sessions: dict[int, OpenSession] = {}
        self._ending = ""
        self._ended = asyncio.Event()

    async def Describe(self, request: wire.DescribeRequest, context: grpc.aio.ServicerContext) -> wire.Description:
        return self._engine.describe()

    async def Watch(self, request: wire.WatchRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[wire.Figures]:
        told, told_at = wire.Figures(), -math.inf
        while not self._ended.is_set():
            figures, now = self._engine.figures(), time.monotonic()
            if not at_rest(figures, told) or now - told_at >= REST_SECONDS:
                told, told_at = figures, now
                yield figures
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), WATCH_SECONDS)
        yield self._engine.figures()

    async def Session(
        self, requests: AsyncIterator[wire.Command], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.Event]:
        session = await self._open(context)
        reader = asyncio.create_task(self._read(session, requests))
        try:
            while (event := await session.events.get()) is not None:
                yield event
            if session.refusal:
                await context.abort(grpc.StatusCode.UNAVAILABLE, session.refusal)
        finally:
            reader.cancel()
            for task in session.compiling.values():
                task.cancel()
            del self._sessions[session.number]
            for request_id in session.open:
                self._post(Cancel(f"{session.number}:{request_id}"))

    async def Embed(self, request: wire.EmbedRequest, context: grpc.aio.ServicerContext) -> wire.EmbedReply:
        """A session of one request: it shares the queue and its limits with all others."""
        session = await self._open(context)
        embedding = session.named(embedding_from_wire(request))
        try:
            self._hand_over(session, embedding)
            while event := await session.events.get():
                for progress in event.progress:
                    if progress.finish == wire.STOP:
                        return wire.EmbedReply(values=progress.embedding)
                    if progress.finish:
                        await context.abort(EMBED_CODES[progress.finish], progress.error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, session.refusal)
            raise AssertionError("abort always raises")
        finally:
            del self._sessions[session.number]
            self._post(Cancel(embedding.id))

    async def ClearCache(
        self, request: wire.ClearCacheRequest, context: grpc.aio.ServicerContext
    ) -> wire.ClearCacheReply:
        loop = asyncio.get_running_loop()
        cleared: asyncio.Future[tuple[int, int]] = loop.create_future()

        def answer(entries: int, size: int) -> None:
            if not cleared.done():  # the client may have left
                cleared.set_result((entries, size))

        def done(entries: int, size: int) -> None:
            loop.call_soon_threadsafe(answer, entries, size)

        if not self._post(ClearCache(done)):
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._not_ready())
        try:
            async with asyncio.timeout(CLEAR_SECONDS):
                entries, size = await cleared
        except TimeoutError:
            late = f"the cache was not cleared within {CLEAR_SECONDS:g} s: it is when the step under way is over"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, late)
        return wire.ClearCacheReply(entries=entries, bytes=size)

    async def Trace(
        self, request: wire.TraceRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.TraceReply]:
        try:
            async with contextlib.aclosing(self._engine.trace(request.steps, request.seconds)) as replies:
                async for reply in replies:
                    yield reply
        except CannotTrace as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def _open(self, context: grpc.aio.ServicerContext) -> OpenSession:
        if self._ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._ending)
        session = OpenSession(next(self._numbers))
        self._sessions[session.number] = session
        return session

    def _hand_over(self, session: OpenSession, request: Request, constraint: Constraint | None = None) -> None:
        if not self._post(Submit(request, constraint)):
            if constraint:
                constraint.close()
            # All that is open on it shares this fate: the engine it was handed to will not answer.
            self._close(session, self._not_ready())

    def _not_ready(self) -> str:
        return f"the engine is not ready: {self._engine.describe().detail}"

    async def _read(self, session: OpenSession, requests: AsyncIterator[wire.Command]) -> None:
        try:
            async for command in requests:
                if command.WhichOneof("kind") == "submit":
                    session.open.add(command.submit.id)
                    self._submit(session, command.submit)
                else:
                    self._cancel(session, command.cancel.id)
        except grpc.aio.AioRpcError as error:
            log.info("session %d ended: %s", session.number, why_failed(error))
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                session.events.put_nowait(None)

    def _submit(self, session: OpenSession, submit: wire.Submit) -> None:
        request = session.named(request_from_wire(submit))
        if request.grammar is None:
            self._hand_over(session, request)
            return
        task = asyncio.create_task(self._compile(session, request, request.grammar))
        session.compiling[submit.id] = task
        task.add_done_callback(lambda _: session.compiling.pop(submit.id, None))

    async def _compile(self, session: OpenSession, request: Request, grammar: Grammar) -> None:
        def refuse(finish: Finish, error: str, field: str = "") -> None:
            self.deliver([Progress(request.id, finish=finish, error=error, field=field)])

        try:
            constraint = await self._engine.open_grammar(grammar, request.stop_tokens, request.answered)
        except GrammarError as error:
            refuse(Finish.REJECTED, error.told, error.field)
        except TooManyGrammars as error:
            refuse(Finish.OVERLOADED, str(error))
        except asyncio.CancelledError:
            refuse(Finish.CANCELLED, "")
            raise
        else:
            self._hand_over(session, request, constraint)

    def _cancel(self, session: OpenSession, request_id: str) -> None:
        if task := session.compiling.get(request_id):
            task.cancel()
        else:
            self._post(Cancel(f"{session.number}:{request_id}"))

    def deliver(self, news: list[Progress]) -> None:
        by_session: defaultdict[int, list[wire.Progress]] = defaultdict(list)
        tokens = 0
        for progress in news:
            owner, _, request_id = progress.id.partition(":")
            if session := self._sessions.get(int(owner)):
                tokens += len(progress.tokens)
                by_session[session.number].append(progress_to_wire(progress, request_id))
                if progress.finish:
                    session.open.discard(request_id)
        beats.delivered(tokens)
        for number, entries in by_session.items():
            try:
                self._sessions[number].events.put_nowait(wire.Event(progress=entries))
            except asyncio.QueueFull:
                log.warning("session %d does not read its events: closing it", number)
                self._close(self._sessions[number], "the front end did not read its events")

    def close_all(self, reason: str) -> None:
        """For good: whoever comes later hears the same, and the first reason stands."""
        self._ending = self._ending or reason
        self._ended.set()
        for session in self._sessions.values():
            self._close(session, self._ending)

    @staticmethod
    def _close(session: OpenSession, reason: str) -> None:
        session.refusal = session.refusal or reason
        while session.events.full():
            session.events.get_nowait()
        session.events.put_nowait(None)


class ServiceThread:
    """Runs the service beside the leader's loop."""

    def __init__(self, address: str, engine: EngineFace) -> None:
        self._address = address
        self._service = EngineService(engine)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engine-service", daemon=True)

    def start(self, timeout: float = 10.0) -> None:
        self._thread.start()
        if not self._started.wait(timeout):
            raise TimeoutError(f"the engine's service did not start on {self._address} within {timeout} s")
        if self._failure:
            raise self._failure

    def publish(self, news: list[Progress]) -> None:
        if news:
            self._loop.call_soon_threadsafe(self._service.deliver, news)

    def refuse(self, reason: str) -> None:
        """Nothing more will be answered: open requests end with this reason, later ones never begin."""
        self._loop.call_soon_threadsafe(self._service.close_all, reason)

    def leave(self, reason: str) -> None:
        """`refuse`, and wait until everybody has heard it."""
        self.refuse(reason)
        self.stop(LEAVE_SECONDS)

    def stop(self, timeout: float = 3.0) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        size = [("grpc.max_send_message_length", MAX_MESSAGE), ("grpc.max_receive_message_length", MAX_MESSAGE)]
        server = grpc.aio.server(options=size)
        engine_pb2_grpc.add_EngineServicer_to_server(self._service, server)
        try:
            check_socket_path(self._address)
            server.add_insecure_port(self._address)
            await server.start()
        except Exception as error:
            self._failure = RuntimeError(f"the engine cannot listen on {self._address}: {error}")
            return
        finally:
            self._started.set()
        await self._stop.wait()
        self._service.close_all("the engine is stopping")
        await server.stop(grace=1.0)
