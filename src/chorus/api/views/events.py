"""GET /events: what happened to this server, at once or as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.answers import ResponseModel
from chorus.api.auth import require_admin
from chorus.api.errors import invalid
from chorus.api.journal import EventWatch
from chorus.api.openapi import operation
from chorus.api.respond import sse
from chorus.api.server.gate import record_of
from chorus.api.service import Service
from chorus.api.watching import WatchResponse
from chorus.telemetry.events import Event
from chorus.telemetry.moments import NoMoment, parse_moment

FOLLOW_SECONDS = 3600.0
"""Then whoever follows asks again, and its key is looked at again."""
USUAL_LIMIT = 200
MOST = 1000


class EventBody(ResponseModel):
    """Something that happened; what does not apply is left out."""

    time: float
    """Seconds since 1970."""
    kind: str
    level: str
    """info, warning or error."""
    text: str
    server: str | None = None
    model: str | None = None
    node: str | None = None
    rank: int | None = None
    cause: str | None = None
    """Of a loss: outside, fault or memory."""
    numbers: dict[str, float] | None = None


class EventList(ResponseModel):
    """The latest last."""

    events: list[EventBody]


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    watch, keep_alive = service.event_watch, service.settings.limits.keep_alive_seconds

    @routes.get("/events", **operation(None, EventList, streams=True))
    async def events(
        request: Request, since: str | None = None, limit: str | None = None, follow: str | None = None
    ) -> Response:
        require_admin(record_of(request.scope))
        moment, most = _moment(since), _limit(limit)
        if follow in ("1", "true") or "text/event-stream" in request.headers.get("accept", ""):
            return WatchResponse(service.lifetimes, _told(watch, moment, most, keep_alive), FOLLOW_SECONDS)
        found = await watch.read(moment or 0.0, most)
        return JSONResponse({"events": [event.shown() for event in found]})

    return routes


async def _told(watch: EventWatch, since: float | None, limit: int, keep_alive: float) -> AsyncGenerator[bytes, None]:
    """What was written since a moment, where one was given, and then whatever comes."""
    async with watch.watched() as inbox:
        written = [] if since is None else await watch.read(since, limit)
        said = set(map(_mark, written))
        yield b": events\n\n" + b"".join(map(_frame, written))
        while True:
            try:
                event = await asyncio.wait_for(inbox.get(), keep_alive)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if event is None:
                return
            if _mark(event) not in said:  # came between the first look and the reading
                yield _frame(event)


def _frame(event: Event) -> bytes:
    return sse(event.shown())


def _mark(event: Event) -> Any:
    return event.time, event.kind, event.text


def _moment(since: str | None) -> float | None:
    try:
        return None if since is None else parse_moment(since, time.time())
    except NoMoment as error:
        raise invalid(f"since: {error}.", "since") from None


def _limit(limit: str | None) -> int:
    if limit is None:
        return USUAL_LIMIT
    if not limit.isascii() or not limit.isdigit() or len(limit) > 9 or not 1 <= int(limit) <= MOST:
        raise invalid(f"limit: must be a whole number from 1 to {MOST}.", "limit")
    return int(limit)
