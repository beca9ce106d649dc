"""One generation becomes one HTTP answer, whole or as server-sent events, in whichever wire format is asked for."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from chorus.api.access import Record, record_of
from chorus.api.errors import ApiError, from_engine, internal
from chorus.api.lifetime import Cause, Interrupted
from chorus.api.service import Service
from chorus.frontend.errors import EngineError
from chorus.frontend.generation import Delta, Finished, TextGeneration

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

_LAST_WORD_SECONDS = 2.0


class WireFormat(Protocol):
    def opening(self) -> bytes:
        """Before the first text."""

    def piece(self, delta: Delta) -> bytes:
        """A piece of the answer."""

    def closing(self, finished: Finished, performance: Performance) -> bytes:
        """After the last text."""

    def whole(self, text: str, tokens: list[int], finished: Finished, performance: Performance) -> dict[str, Any]:
        """The answer in one body."""


@dataclass(frozen=True)
class Performance:
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    time_to_first_token_seconds: float | None
    queue_seconds: float
    cached_tokens: int


def measure(finished: Finished, first_token_seconds: float | None) -> Performance:
    """A rate that has no duration to be measured over is None: one token has no speed."""
    timing = finished.timing
    return Performance(
        prompt_tokens_per_second=_rate(timing.prompt_tokens - timing.cached_tokens, timing.prompt_seconds),
        generation_tokens_per_second=_rate(timing.generated_tokens - 1, timing.generation_seconds),
        time_to_first_token_seconds=None if first_token_seconds is None else round(first_token_seconds, 6),
        queue_seconds=round(timing.queue_seconds, 6),
        cached_tokens=timing.cached_tokens,
    )


def usage_body(finished: Finished) -> dict[str, Any]:
    usage = finished.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def performance_body(performance: Performance) -> dict[str, Any]:
    return asdict(performance)


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class GenerationResponse(Response):
    """Runs the generation itself, so that one block owns it from its first token to the end of its client."""

    def __init__(self, service: Service, generation: TextGeneration, wire: WireFormat, stream: bool) -> None:
        super().__init__()
        self._service = service
        self._generation = generation
        self._wire = wire
        self._stream = stream
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            async with self._service.lifetimes.begin(receive), aclosing(self._generation):
                answer = self._answer_stream if self._stream else self._answer_whole
                await answer(record, scope, receive, send)
        except EngineError as error:
            await self._fail(from_engine(error), record, send)
        except Interrupted as interruption:
            record.figures["finish"] = interruption.cause.value
            if interruption.cause is Cause.CLIENT_GONE:
                record.status = 499
                return
            await self._fail(interruption.as_error(), record, send)
        except Exception:
            # Once a stream has begun no handler further out can tell its client.
            if self._started:
                await self._fail(internal(), record, send)
            raise

    async def _fail(self, error: ApiError, record: Record, send: Send) -> None:
        record.figures.setdefault("finish", "error")
        if not self._started:
            raise error
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                await send({"type": "http.response.body", "body": event(error.body()), "more_body": False})
        except TimeoutError:
            log.warning("request %s: its client does not read, so it was not told why it ended", record.request_id)

    async def _answer_whole(self, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[str] = []
        tokens: list[int] = []
        async for item in self._generation:
            if isinstance(item, Finished):
                performance = _note(record, item)
                body = self._wire.whole("".join(pieces), tokens, item, performance)
                await JSONResponse(body)(scope, receive, send)
                return
            _note_first(record, item)
            pieces.append(item.text)
            tokens.extend(item.tokens)

    async def _answer_stream(self, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        # The status is not sent before the engine has accepted the request and begun.
        async for item in self._generation:
            pending = b""
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                pending = self._wire.opening()
            if isinstance(item, Finished):
                pending += self._wire.closing(item, _note(record, item)) + DONE
                await send({"type": "http.response.body", "body": pending, "more_body": False})
                return
            _note_first(record, item)
            pending += self._wire.piece(item)
            if pending:
                await send({"type": "http.response.body", "body": pending, "more_body": True})


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def _note_first(record: Record, item: Delta) -> None:
    if item.tokens and "ttft" not in record.figures:
        record.figures["ttft"] = record.elapsed()


def _note(record: Record, finished: Finished) -> Performance:
    performance = measure(finished, record.figures.get("ttft"))
    record.figures.update(
        prompt_tokens=finished.usage.prompt_tokens,
        generated_tokens=finished.usage.completion_tokens,
        tokens_per_second=performance.generation_tokens_per_second,
        finish=finished.reason,
    )
    return performance


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 3) if tokens > 0 and seconds > 0 else None
