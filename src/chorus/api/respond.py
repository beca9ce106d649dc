"""A generation becomes one HTTP answer, whole or as server-sent events, in whichever wire format is asked for."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import orjson
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from chorus.api.errors import SERVING_ERRORS, ApiError, from_engine, from_serving, internal
from chorus.api.served import Served
from chorus.api.server.gate import Record, record_of
from chorus.api.server.lifetime import Cause, Interrupted
from chorus.api.server.listing import Listed
from chorus.api.service import Service
from chorus.api.tracing import RequestTrace, asked_of, traced
from chorus.api.usage import Outcome, sum_up
from chorus.messages.engine import TokenLogprobs
from chorus.serving.blocks import Blocks
from chorus.serving.engine_link.standing import Standing
from chorus.serving.errors import EngineError, EngineLost, EngineOverloaded, RequestRejected, doing, heard
from chorus.serving.generation import AnswerDelta, AnswerEnd, Generation, TextTokens
from chorus.serving.models.directory import Model
from chorus.serving.prepare import check_amounts, prepare
from chorus.serving.requests.request import GenerationRequest
from chorus.telemetry import events, telling
from chorus.telemetry.events import Kind
from chorus.telemetry.metrics.answers import RequestMeter

log = logging.getLogger(__name__)

_LAST_WORD_SECONDS = 2.0


class WholeAnswer:
    """One choice, gathered."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.text_tokens: defaultdict[int, list[tuple[int, TokenLogprobs]]] = defaultdict(list)
        """Those of each block of text, by the block's number."""
        self._text_tokens = TextTokens()
        self.end: AnswerEnd | None = None

    def take(self, delta: AnswerDelta) -> None:
        for _ in self.blocks.push(delta.pieces):
            pass
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        if decided := self._text_tokens.take(delta):
            self.text_tokens[self.blocks.all[-1].number] += decided

    def finish(self, end: AnswerEnd) -> None:
        self.end = end
        if end.reason == "length":
            self.blocks.cut_off()

    @property
    def ended(self) -> AnswerEnd:
        assert self.end is not None
        return self.end


class WireFormat(Protocol):
    """A protocol's way to say it. Made for one request, so it may remember what it has said."""

    @property
    def keep_alive(self) -> bytes:
        """A frame without content, sent while the model is silent."""

    def opening(self) -> bytes:
        """Before the first piece of a stream."""

    def delta(self, delta: AnswerDelta) -> bytes:
        """What came; empty where there is nothing to say yet."""

    def end(self, end: AnswerEnd) -> bytes:
        """One choice is complete."""

    def closing(self, outcome: Outcome) -> bytes:
        """All choices are complete."""

    def failure(self, error: ApiError) -> bytes:
        """The stream, which has begun, breaks off here."""

    def whole(self, answers: Sequence[WholeAnswer], outcome: Outcome) -> dict[str, Any]:
        """The answer in one body."""


def sse(data: dict[str, Any], event: str | None = None) -> bytes:
    name = b"event: %b\n" % event.encode() if event else b""
    return b"%bdata: %b\n\n" % (name, written(data))


def written(data: Any) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError:
        # What repeats a client's own schema may hold whole numbers of any length.
        return json.dumps(data, ensure_ascii=False).encode()


MakeWire = Callable[[Served, Generation], Awaitable[WireFormat]]


class GenerationResponse(Response):
    """Waits for its model, prepares the generation and runs it, so that one block owns it from the moment in which its
    model is granted to the end of its client."""

    def __init__(
        self,
        service: Service,
        model: Model[Served],
        asked: GenerationRequest,
        wire: MakeWire,
        *,
        stream: bool,
        failure: Callable[[ApiError], bytes],
        keep_alive: float | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wire` is made once the model is there; `failure` says that a stream breaks off before that. `before_end` is
        awaited when the answer is made, before its client hears that it is complete.
        """
        super().__init__()
        if not model.state.takes_requests:
            check_amounts(asked, service.settings.limits)
        self._service = service
        self._model = model
        self._asked = asked
        self._make_wire = wire
        self._stream = stream
        self._failure = failure
        self._keep_model = keep_alive
        self._before_end = before_end
        self._trace: RequestTrace | None = None
        self._started = False
        self._said = False
        self._complete = False
        self._sent = 0.0
        self._meter: RequestMeter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.log_fields["model"] = self._model.id
        listed = Listed(record, scope["path"], self._model.settings)
        operation = "text_completion" if self._asked.messages is None else "chat"
        asked = asked_of(self._asked, self._stream)
        with (
            self._service.listing.listed(listed) as self._listed,
            traced(self._service.traces, scope, self._model.settings, operation, asked) as self._trace,
        ):
            await self._serve(record, scope, receive, send)

    async def _serve(self, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._service.lifetimes.begin(receive) as self._listed.lifetime:
                while not self._complete:
                    await self._try(record, scope, receive, send)
        except EngineError as error:
            self._count(error)
            await self._fail(from_engine(error), record, send)
        except Interrupted as interruption:
            if self._complete:
                # Who has its whole answer is gone for us, too.
                return
            record.log_fields["finish"] = interruption.cause.value
            if self._trace:
                self._trace.failed(interruption.cause.value)
            if interruption.cause is Cause.CLIENT_GONE:
                record.status = 499
                return
            await self._fail(interruption.as_error(), record, send)
        except (ApiError, *SERVING_ERRORS) as error:
            # A refusal: of the model, which did not come in time, or of what was found wrong only when it had come.
            told = error if isinstance(error, ApiError) else from_serving(error, record.models)
            if not self._started:
                self._journal(told)
                raise
            await self._fail(told, record, send)
        except Exception as error:
            self._count(error)
            # Once a stream has begun no handler further out can tell its client.
            if self._started:
                await self._fail(internal(), record, send)
            else:
                self._journal(internal())
            raise
        finally:
            if self._meter:
                self._meter.close()

    async def _try(self, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        """Returns without an answer where the model was unloaded before anything was said: it is waited for again."""

        async def tell() -> None:
            await self._begin(send)
            comment = f": {doing(heard(self._model.row, record.models))}\n\n".encode()
            await send({"type": "http.response.body", "body": comment, "more_body": True})

        self._listed.standing = None
        patience = self._service.settings.load_patience_seconds
        async with self._model.used(patience, self._keep_model, tell if self._stream else None) as served:
            try:
                self._served = served
                self._listed.standing = Standing
                self._generation = await prepare(self._asked, served.model)
                self._listed.standing = self._generation.standing
                self._wire = await self._make_wire(served, self._generation)
                self._meter, self._generation.meter.arrived = self._generation.meter, record.started
                record.log_fields["prompt_tokens"] = sum(map(len, self._generation.prompts))
                async with aclosing(self._generation):
                    # Each token wakes the task that waits for it, with all calls in between: one of its own has few.
                    if self._stream:
                        await asyncio.create_task(self._answer_stream(record, send))
                    else:
                        answer = await asyncio.create_task(self._answer_whole(record))
                        await Response(written(answer), media_type="application/json")(scope, receive, send)
                    self._complete = True
            except EngineLost:
                if self._said or self._model.keeps(served):
                    raise
                self._meter = None

    def _count(self, error: Exception) -> None:
        if self._meter and isinstance(error, (RequestRejected, EngineOverloaded)):
            self._meter.refuse()
        elif self._meter:
            self._meter.fail(lost=isinstance(error, EngineLost))

    def _journal(self, error: ApiError) -> None:
        if kind := _event_of(error):
            telling.tell(kind, model=self._model.id, code=error.kind)

    async def _begin(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def _fail(self, error: ApiError, record: Record, send: Send) -> None:
        record.log_fields.setdefault("finish", "error")
        self._journal(error)
        if self._trace:
            self._trace.failed(error.kind)
        if not self._started:
            raise error
        said = self._wire.failure(error) if self._said else self._failure(error)
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                await send({"type": "http.response.body", "body": said, "more_body": False})
        except TimeoutError:
            log.warning("request %s: its client does not read, so it was not told why it ended", record.request_id)

    async def _answer_whole(self, record: Record) -> dict[str, Any]:
        answers = [WholeAnswer() for _ in range(len(self._generation))]
        async for item in self._generation:
            if isinstance(item, AnswerEnd):
                answers[item.choice].finish(item)
                self._note_end(item)
            else:
                _note_first(record, item)
                answers[item.choice].take(item)
        whole = self._wire.whole(answers, self._note(record, [answer.ended for answer in answers]))
        if self._before_end:
            await self._before_end()
        return whole

    async def _answer_stream(self, record: Record, send: Send) -> None:
        accepted = asyncio.create_task(self._generation.accepted())
        try:
            # Until the engine has taken the request, a refusal is a status; from then on, or when that takes long, its
            # client hears that it is alive.
            done, _ = await asyncio.wait({accepted}, timeout=self._service.settings.limits.keep_alive_seconds)
            for task in done:
                task.result()
            await self._begin(send)
            self._said = True
            pending = await self._say_all(record, accepted)
        finally:
            accepted.cancel()
        await record.send({"type": "http.response.body", "body": pending, "more_body": False})

    async def _say_all(self, record: Record, accepted: asyncio.Task[None]) -> bytes:
        """What is left to be said when all choices are complete."""
        ends: list[AnswerEnd] = []
        pending = self._wire.opening()
        send, clock = record.send, asyncio.get_running_loop().time
        async with self._kept_alive(send):
            if not accepted.done():
                await send({"type": "http.response.body", "body": pending, "more_body": True})
                pending = b""
                await accepted
            while len(ends) < len(self._generation):
                if pending:
                    await send({"type": "http.response.body", "body": pending, "more_body": True})
                    self._sent = clock()
                pending = self._say(await anext(self._generation), ends, record)
        pending += self._wire.closing(self._note(record, ends))
        if self._before_end:
            await self._before_end()
        return pending

    def _say(self, item: AnswerDelta | AnswerEnd, ends: list[AnswerEnd], record: Record) -> bytes:
        if isinstance(item, AnswerEnd):
            ends.append(item)
            self._note_end(item)
            return self._wire.end(item)
        _note_first(record, item)
        return self._wire.delta(item)

    @asynccontextmanager
    async def _kept_alive(self, send: Send) -> AsyncIterator[None]:
        """Proxies cut connections on which nothing moves; a task of its own costs the tokens nothing."""
        task = asyncio.create_task(self._keep_alive(send))
        try:
            yield
        finally:
            task.cancel()

    async def _keep_alive(self, send: Send) -> None:
        every = self._service.settings.limits.keep_alive_seconds
        clock = asyncio.get_running_loop().time
        self._sent = clock()
        while True:
            await asyncio.sleep(self._sent + every - clock())
            if clock() >= self._sent + every:
                await send({"type": "http.response.body", "body": self._wire.keep_alive, "more_body": True})
                self._sent = clock()

    def _note(self, record: Record, ends: Sequence[AnswerEnd]) -> Outcome:
        outcome = sum_up(ends, record.log_fields.get("ttft"), self._generation.choices_per_prompt)
        record.log_fields.update(
            prompt_tokens=outcome.usage.prompt_tokens,
            cached_tokens=outcome.usage.cached_tokens,
            generated_tokens=outcome.usage.completion_tokens,
            tokens_per_second=outcome.performance.generation_tokens_per_second,
            finish=ends[0].reason,
        )
        self._served.note(outcome.performance)
        if self._trace:
            self._trace.answered(outcome, ends, self._served.ranks)
        return outcome

    def _note_end(self, end: AnswerEnd) -> None:
        if self._trace:
            self._trace.ended(end)


STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def _note_first(record: Record, item: AnswerDelta) -> None:
    if item.tokens and "ttft" not in record.log_fields:
        record.log_fields["ttft"] = record.elapsed()


def _event_of(error: ApiError) -> Kind | None:
    """What the journal has for it: nothing where the client is at fault, or the server's end, which it tells anyway."""
    if error.kind in ("engine_overloaded", "too_busy", "engine_not_ready"):
        return events.REQUEST_REFUSED
    return events.REQUEST_FAILED if error.status >= 500 and error.kind != "shutting_down" else None
