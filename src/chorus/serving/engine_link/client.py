"""The front end's side of the engine link: one session for all requests of this process.

A request outlives its engine: its stream keeps what was asked and what was answered, and when the engine is lost asks
the next one to go on from there.

Leaving a stream early in any way (closing it, a cancelled task) puts its Cancel on the wire queue before
control returns, without an await: there is no path on which an abandoned request keeps running.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import grpc

from chorus.config.sections import RecoveryConfig
from chorus.messages.calls import own_words, why_failed
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
from chorus.platform import faults
from chorus.serving.engine_link.poison import Case
from chorus.serving.engine_link.recovery import Patience, Recovery, sight, told
from chorus.serving.engine_link.standing import Stage, Standing
from chorus.serving.engine_link.times import Times
from chorus.serving.engine_link.watch import EngineWatch
from chorus.serving.errors import EngineError, EngineLost, EngineOverloaded, RequestFailed, RequestRejected
from chorus.telemetry.metrics.models import ModelMetrics

log = logging.getLogger(__name__)

# A restarted engine is back on the same socket within seconds; gRPC's own back-off would wait up to two minutes.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name the time that one attempt has: an engine on a busy machine takes a while to greet.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.max_receive_message_length", -1),
)


_QUIET_SECONDS = 2.0
"""An engine that tells its requests nothing for so long is asked what it does."""

_requests = itertools.count(1)
_events = itertools.count(1)


class EngineClient:
    def __init__(
        self,
        address: str,
        connect_timeout: float = 10.0,
        recovery: RecoveryConfig | None = None,
        takes_over: bool = False,
        metrics: ModelMetrics | None = None,
        model: str = "",
    ) -> None:
        """`takes_over`: a front end before this one was lost, so that its engine has served. `metrics` outlive this
        client; where there are none, nobody looks at what it counts. `model` is what the engine serves, for those who
        read of its losses.
        """
        metrics = metrics or ModelMetrics()
        self.counts = metrics.answers
        self._watch = EngineWatch(self._stub, metrics.engine)
        self.address = address
        self.patience_seconds = (recovery or RecoveryConfig()).patience_seconds
        self.recovery = Recovery(self.describe, self.patience_seconds, takes_over, model)
        self._connect_timeout = connect_timeout
        self._channel: grpc.aio.Channel | None = None
        self._session: _Session | None = None
        self._connecting = asyncio.Lock()
        self._numbers = itertools.count(1)
        self.open: set[EngineStream] = set()
        """Streams that were asked for something and are not over, wherever they are."""

    @property
    def open_requests(self) -> int:
        return len(self.open)

    async def describe(self, timeout: float) -> pb.Description:
        try:
            seen = await self._stub().Describe(pb.DescribeRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            told = _unanswered(error)
            self.recovery.unanswered(told)
            raise EngineLost(told) from None
        except asyncio.CancelledError:
            # A channel that is closed cancels what is asked over it, and whoever asks was not cancelled.
            if (asking := asyncio.current_task()) and asking.cancelling():
                raise
            raise EngineLost("the link to the engine was closed") from None
        self.recovery.note(seen)
        return seen

    async def embed(self, prompt: Sequence[int], pooling: Pooling, timeout: float) -> tuple[float, ...]:
        """The pooled final hidden state of a prompt, not normalized; asked again where its engine is lost."""
        case = Case(Request("", tuple(prompt), max_tokens=1, pooling=pooling))
        try:
            while True:
                await self.recovery.turn(case)
                case.taken = True
                try:
                    reply = await self._stub().Embed(embedding_to_wire(prompt, pooling), timeout=timeout)
                    return tuple(reply.values)
                except grpc.aio.AioRpcError as error:
                    refusal = _refusal(error)
                    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    if late or not isinstance(refusal, EngineLost) or not self.recovery.lose(str(refusal), case):
                        raise refusal from None
        finally:
            self.recovery.leave(case)

    async def clear_cache(self, timeout: float) -> tuple[int, int]:
        """Forgets what is stored of earlier requests; how many entries that were, and how many bytes."""
        try:
            reply = await self._stub().ClearCache(pb.ClearCacheRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error) from None
        return reply.entries, reply.bytes

    def generate(self, request: Request) -> EngineStream:
        """Nothing is submitted before the first item is asked for."""
        return EngineStream(self, replace(request, id=f"{next(self._numbers)}:{request.id}"))

    def watch(self) -> None:
        """From now on what the engine counts is heard."""
        self._watch.start()

    def unwatch(self) -> None:
        self._watch.stop()

    async def close(self, why: str = "the front end closed it") -> None:
        self.recovery.give_up(why)
        self.unwatch()
        if self._session:
            self._session.end(why)
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
            raise EngineLost(f"the engine could not be reached within {self._connect_timeout:g} s; {_SEE}") from None

    async def _connect(self) -> _Session:
        stub = self._stub()
        assert self._channel is not None
        await self._channel.channel_ready()
        return _Session(self, stub.Session())

    def _stub(self) -> EngineStub:
        # Made on first use: a channel belongs to the event loop that runs when it is created.
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return EngineStub(self._channel)


class _Session:
    """One Session call: a writer, a reader, and an inbox for each request that is open on it."""

    def __init__(self, client: EngineClient, call: grpc.aio.StreamStreamCall) -> None:
        self.broken: str | None = None
        self._client = client
        self._call = call
        self._outbox: asyncio.Queue[pb.Command] = asyncio.Queue()
        self._streams: dict[str, EngineStream] = {}
        self._heard = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._tasks = (asyncio.create_task(self._write()), asyncio.create_task(self._read()))

    def submit(self, stream: EngineStream, request: Request) -> None:
        if self.broken:
            raise EngineLost(self.broken)
        faults.at("request", faults.FRONT_END, next(_requests))
        self._streams[stream.id] = stream
        self._outbox.put_nowait(pb.Command(submit=request_to_wire(request)))
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_after())

    def cancel(self, stream: EngineStream) -> None:
        if stream.id in self._streams:
            self._outbox.put_nowait(pb.Command(cancel=pb.Cancel(id=stream.id)))

    def forget(self, stream: EngineStream) -> None:
        self._streams.pop(stream.id, None)

    def end(self, why: str) -> None:
        """Whatever is open has lost its engine; the first reason stands."""
        if self.broken:
            return
        self.broken = f"the session with the engine ended: {why}"
        streams = list(self._streams.values())
        self._streams.clear()
        if not streams:
            self._client.recovery.lose(self.broken)
        for stream in streams:
            stream.lose(EngineLost(self.broken))
        self._call.cancel()
        for task in (*self._tasks, self._watch):
            if task and task is not asyncio.current_task():
                task.cancel()

    async def _look_after(self) -> None:
        """An engine that replaces a rank keeps the session, and its requests wait: within the same patience."""
        patience, clock = Patience(self._client.patience_seconds), time.monotonic
        began = self._heard = clock()
        try:
            while self._streams:
                await asyncio.sleep(_QUIET_SECONDS)
                if not self._streams or clock() - self._heard < _QUIET_SECONDS:
                    patience.renew()
                    began = self._heard
                    continue
                seen = await self._client.recovery.look()
                if seen and seen.state == pb.READY:
                    patience.renew()
                    began = clock()
                elif patience.spent(sight(seen), clock()):
                    self._give_up(
                        f"nothing has come from the engine for {clock() - began:.0f} s and nothing has moved for "
                        f"{patience.seconds:g} s: {told(seen)}; try again later"
                    )
                    return
        finally:
            self._watch = None

    def _give_up(self, failure: str) -> None:
        """For good: whoever is open has waited long enough."""
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.deliver(EngineLost(failure))
        self.end(failure)

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except grpc.aio.AioRpcError as error:
            self.end(why_failed(error))
        except asyncio.InvalidStateError:
            self.end("the engine closed it")

    async def _read(self) -> None:
        try:
            async for event in self._call:
                self._heard = time.monotonic()
                for progress in event.progress:
                    self._dispatch(progress)
            self.end("the engine closed it")
        except grpc.aio.AioRpcError as error:
            self.end(why_failed(error))
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
        elif progress.begun or progress.resumed:
            stream.note(progress)
        elif progress.finish is None:
            stream.take(progress)
        else:
            del self._streams[progress.id]
            failure = _failure(progress, stream.cancel_wanted)
            if isinstance(failure, EngineLost):
                stream.lose(failure)
            elif failure:
                stream.deliver(failure)
            else:
                stream.take(progress)


class EngineStream(AsyncIterator[Progress]):
    """One request's progress. Ends after the item that carries a finish; raises an EngineError otherwise."""

    def __init__(self, client: EngineClient, request: Request) -> None:
        self.id = request.id
        self.cancel_wanted = False
        self._client = client
        self._case = Case(request)
        self._session: _Session | None = None
        self._accepted = False
        self._begun = False
        self._cached: int | None = None
        self._ranks_lost = 0
        self._done = False
        self._times = Times()
        # Holds at most one item per token of the request. One reader, so a queue's bookkeeping for many is not needed.
        self._inbox: deque[Progress | EngineError] = deque()
        self._arrival: asyncio.Future[None] | None = None

    async def __anext__(self) -> Progress:
        if self._done:
            raise StopAsyncIteration
        try:
            # More than once where the engine's word that it took the request comes between, or the engine is lost.
            while not self._inbox:
                await self._more()
            item = self._inbox.popleft()
            faults.at("event", faults.FRONT_END, next(_events))
        except BaseException:
            self._abandon()
            raise
        if isinstance(item, EngineError):
            self._over()
            raise item
        if item.finish is not None:
            self._over()
        return item

    async def accepted(self) -> None:
        """Submits the request and waits until the engine has taken it; raises its refusal."""
        try:
            while not self._accepted and not self._inbox:
                await self._more()
        except BaseException:
            self._abandon()
            raise
        if self._inbox and isinstance(self._inbox[0], EngineError):
            await self.__anext__()

    def accept(self) -> None:
        self._accepted = self._case.taken = True
        self._client.recovery.serves()
        self._wake()

    def note(self, progress: Progress) -> None:
        """What the engine says of it between two tokens. Nobody waits for that."""
        self._begun |= progress.begun
        self._ranks_lost += progress.resumed
        if progress.timing:
            self._cached = progress.timing.cached_tokens

    def standing(self) -> Standing:
        """How far it is."""
        case, times = self._case, self._times
        stage = Stage.DECODE if case.answered else Stage.PREFILL if self._begun else Stage.QUEUED
        return Standing(
            stage,
            len(case.request.prompt),
            self._cached if times.cached is None else times.cached,
            len(case.answered),
            times.first_token,
            self._ranks_lost + times.resumed,
        )

    def take(self, progress: Progress) -> None:
        """What the engine brought: kept, since the next one is told it if this one is lost."""
        case = self._case
        if progress.tokens:
            if not case.answered:
                self._times.begin()
            case.answered += progress.tokens
            if case.times:
                self._client.recovery.grown(case)
        if progress.timing:
            progress = progress._replace(timing=self._times.told(progress.timing))
        self.deliver(progress)

    def deliver(self, item: Progress | EngineError) -> None:
        self._inbox.append(item)
        self._wake()

    def lose(self, error: EngineLost) -> None:
        """The engine is gone: the next one is asked to go on, where there is one."""
        self._session = None
        if not self._client.recovery.lose(str(error), self._case):
            self.deliver(error)
        self._wake()

    async def _more(self) -> None:
        if self._session is None:
            await self._submit()
        else:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    async def _submit(self) -> None:
        """To the engine that serves, once it does and it is our turn; what is complete already ends by itself."""
        self._client.open.add(self)
        await self._client.recovery.turn(self._case, self._need_not_run)
        if self._need_not_run():
            finish = Finish.CANCELLED if self.cancel_wanted else Finish.LENGTH
            self.deliver(Progress(self.id, (), finish, timing=self._times.so_far(len(self._case.answered))))
            return
        try:
            session = await self._client.session()
            self._times.submit()
            session.submit(self, self._rest())
        except EngineLost as error:
            self.lose(error)
        else:
            self._session = session

    def _need_not_run(self) -> bool:
        return self.cancel_wanted or len(self._case.answered) >= self._case.request.max_tokens

    def _rest(self) -> Request:
        request, answered = self._case.request, self._case.answered
        return replace(request, answered=tuple(answered), resumed=True) if self._accepted else request

    def _wake(self) -> None:
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)

    def cancel(self) -> None:
        """Asks the engine to stop; the stream then goes on to its finish, with the timing."""
        if not self.cancel_wanted:
            self.cancel_wanted = True
            if self._session:
                self._session.cancel(self)
            else:
                self._client.recovery.wake()

    async def aclose(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        if self._session:
            self.cancel()
            self._session.forget(self)
        self._over()

    def _over(self) -> None:
        self._done = True
        if self in self._client.open:
            self._client.open.remove(self)
            self._client.recovery.leave(self._case)


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


_SEE = "it is started again by itself where it has ended, and the server's log says why"


def _unanswered(error: grpc.aio.AioRpcError) -> str:
    if said := own_words(error):
        return said
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "the engine has not answered in time; if it stays so, the server's log says what it does"
    return f"the engine does not answer; {_SEE}"


def _refusal(error: grpc.aio.AioRpcError) -> EngineError:
    match error.code():
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNIMPLEMENTED:
            return RequestRejected(why_failed(error))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return EngineOverloaded(why_failed(error))
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineLost(_unanswered(error))
        case grpc.StatusCode.CANCELLED:
            return EngineLost(why_failed(error))
        case _:
            return RequestFailed(why_failed(error))
