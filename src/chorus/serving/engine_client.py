"""The front end's side of the engine link: one session for all requests of this process.

Leaving a stream early in any way (closing it, a cancelled task) puts its Cancel on the wire queue before
control returns, without an await: there is no path on which an abandoned request keeps running.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import grpc

from chorus.messages.engine import (
    Finish,
    Pooling,
    Progress,
    Request,
    embedding_to_wire,
    progress_from_wire,
    request_to_wire,
)
from chorus.messages.proto import engine_pb2 as pb
from chorus.messages.proto.engine_pb2_grpc import EngineStub
from chorus.serving.errors import EngineError, EngineLost, EngineOverloaded, RequestFailed, RequestRejected

log = logging.getLogger(__name__)

# A restarted engine is back on the same socket within seconds; gRPC's own back-off would wait up to two minutes.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name the time that one attempt has: an engine on a busy machine takes a while to greet.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
)


class EngineClient:
    def __init__(self, address: str, connect_timeout: float = 10.0) -> None:
        self.address = address
        self._connect_timeout = connect_timeout
        self._channel: grpc.aio.Channel | None = None
        self._session: _Session | None = None
        self._connecting = asyncio.Lock()
        self._numbers = itertools.count(1)

    @property
    def open_requests(self) -> int:
        return self._session.open_requests if self._session else 0

    async def describe(self, timeout: float) -> pb.Description:
        try:
            return await self._stub().Describe(pb.DescribeRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise EngineLost(f"the engine at {self.address} does not answer: {_reason(error)}") from None

    async def embed(self, prompt: Sequence[int], pooling: Pooling, timeout: float) -> tuple[float, ...]:
        """The pooled final hidden state of a prompt, not normalized."""
        try:
            reply = await self._stub().Embed(embedding_to_wire(prompt, pooling), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error, self.address) from None
        return tuple(reply.values)

    async def clear_cache(self, timeout: float) -> tuple[int, int]:
        """Forgets what is stored of earlier requests; how many entries that were, and how many bytes."""
        try:
            reply = await self._stub().ClearCache(pb.ClearCacheRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error, self.address) from None
        return reply.entries, reply.bytes

    def generate(self, request: Request) -> EngineStream:
        """Nothing is submitted before the first item is asked for."""
        return EngineStream(self, replace(request, id=f"{next(self._numbers)}:{request.id}"))

    async def close(self) -> None:
        if self._session:
            self._session.end("the front end closed it")
        if self._channel:
            await self._channel.close()

    @property
    def connected(self) -> bool:
        return self._session is not None and self._session.broken is None

    async def session(self) -> _Session:
        """The live session, made anew when the last one broke. Whoever waits shares one attempt and one deadline."""
        if self._session and self.connected:
            return self._session
        try:
            async with asyncio.timeout(self._connect_timeout), self._connecting:
                if self._session is None or self._session.broken:
                    self._session = await self._connect()
                return self._session
        except TimeoutError:
            raise EngineLost(
                f"the engine at {self.address} could not be reached within {self._connect_timeout:g} s"
            ) from None

    async def _connect(self) -> _Session:
        stub = self._stub()
        assert self._channel is not None
        await self._channel.channel_ready()
        return _Session(stub.Session())

    def _stub(self) -> EngineStub:
        # Made on first use: a channel belongs to the event loop that runs when it is created.
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return EngineStub(self._channel)


class _Session:
    """One Session call: a writer, a reader, and an inbox for each request that is open on it."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.broken: str | None = None
        self._call = call
        self._outbox: asyncio.Queue[pb.Command] = asyncio.Queue()
        self._streams: dict[str, EngineStream] = {}
        self._tasks = (asyncio.create_task(self._write()), asyncio.create_task(self._read()))

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    def submit(self, stream: EngineStream, request: Request) -> None:
        if self.broken:
            raise EngineLost(self.broken)
        self._streams[stream.id] = stream
        self._outbox.put_nowait(pb.Command(submit=request_to_wire(request)))

    def cancel(self, stream: EngineStream) -> None:
        if stream.id in self._streams:
            self._outbox.put_nowait(pb.Command(cancel=pb.Cancel(id=stream.id)))

    def forget(self, stream: EngineStream) -> None:
        self._streams.pop(stream.id, None)

    def end(self, reason: str) -> None:
        """Fails whatever is open; the first reason stands."""
        if self.broken:
            return
        self.broken = f"the session with the engine ended: {reason}"
        streams = list(self._streams.values())
        self._streams.clear()
        if streams:
            log.warning("engine session ended with %d open requests: %s", len(streams), reason)
        for stream in streams:
            stream.deliver(EngineLost(self.broken))
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except grpc.aio.AioRpcError as error:
            self.end(_reason(error))
        except asyncio.InvalidStateError:
            self.end("the engine closed it")

    async def _read(self) -> None:
        try:
            async for event in self._call:
                for progress in event.progress:
                    self._dispatch(progress)
            self.end("the engine closed it")
        except grpc.aio.AioRpcError as error:
            self.end(_reason(error))
        except asyncio.CancelledError:
            self.end("the front end closed it")
            raise

    def _dispatch(self, message: pb.Progress) -> None:
        # Progress of a request that was given up may still arrive, since its Cancel travels meanwhile.
        stream = self._streams.get(message.id)
        if stream is None:
            return
        progress = progress_from_wire(message)
        if progress.accepted:
            stream.accept()
        elif progress.finish is None:
            stream.deliver(progress)
        else:
            del self._streams[progress.id]
            stream.deliver(_failure(progress, stream.cancel_wanted) or progress)


class EngineStream(AsyncIterator[Progress]):
    """One request's progress. Ends after the item that carries a finish; raises an EngineError otherwise."""

    def __init__(self, client: EngineClient, request: Request) -> None:
        self.id = request.id
        self.cancel_wanted = False
        self._client = client
        self._request = request
        self._session: _Session | None = None
        self._accepted = False
        self._done = False
        # Holds at most one item per token of the request. One reader, so a queue's bookkeeping for many is not needed.
        self._inbox: deque[Progress | EngineError] = deque()
        self._arrival: asyncio.Future[None] | None = None

    async def __anext__(self) -> Progress:
        if self._done:
            raise StopAsyncIteration
        try:
            if self._session is None:
                await self._submit()
            # Twice where the engine's word that it took the request comes between.
            while not self._inbox:
                await self._news()
            item = self._inbox.popleft()
        except BaseException:
            self._abandon()
            raise
        if isinstance(item, EngineError):
            self._done = True
            raise item
        self._done = item.finish is not None
        return item

    async def accepted(self) -> None:
        """Submits the request and waits until the engine has taken it; raises its refusal."""
        try:
            if self._session is None:
                await self._submit()
            while not self._accepted and not self._inbox:
                await self._news()
        except BaseException:
            self._abandon()
            raise
        if self._inbox and isinstance(self._inbox[0], EngineError):
            await self.__anext__()

    def accept(self) -> None:
        self._accepted = True
        self._wake()

    def deliver(self, item: Progress | EngineError) -> None:
        self._inbox.append(item)
        self._wake()

    async def _submit(self) -> None:
        session = await self._client.session()
        session.submit(self, self._request)
        self._session = session

    def _news(self) -> asyncio.Future[None]:
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    def _wake(self) -> None:
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)

    def cancel(self) -> None:
        """Asks the engine to stop; the stream then goes on to its finish, with the timing."""
        if self._session and not self.cancel_wanted:
            self.cancel_wanted = True
            self._session.cancel(self)

    async def aclose(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._done = True
        if self._session:
            self.cancel()
            self._session.forget(self)


def _failure(progress: Progress, cancel_wanted: bool) -> EngineError | None:
    """The error to raise for an outcome that is no answer; a cancel nobody asked for is one of them."""
    match progress.finish:
        case Finish.CANCELLED if not cancel_wanted:
            return EngineLost(progress.error or "the engine cancelled the request; it may be shutting down")
        case Finish.REJECTED:
            return RequestRejected(progress.error or "the engine rejected the request", progress.field)
        case Finish.OVERLOADED:
            return EngineOverloaded(progress.error or "the engine's queue is full; try again later")
        case Finish.FAILED:
            return RequestFailed(progress.error or "the engine failed the request")
        case _:
            return None


def _refusal(error: grpc.aio.AioRpcError, address: str) -> EngineError:
    match error.code():
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNIMPLEMENTED:
            return RequestRejected(_reason(error))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return EngineOverloaded(_reason(error))
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineLost(f"the engine at {address} does not answer: {_reason(error)}")
        case _:
            return RequestFailed(_reason(error))


def _reason(error: grpc.aio.AioRpcError) -> str:
    return error.details() or error.code().name
