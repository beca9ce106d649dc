"""The one layer around every request: its id, who may pass, its log line, and a last answer where something broke."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chorus.api.errors import ApiError, internal

log = logging.getLogger("chorus.api.access")

_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SCOPE_KEY = "chorus.record"
_UNREAD = ("/health", "/metrics", "/static/")
_WATCHED = ("/cluster/status", "/requests")
_LONGEST_PATH = 200

# For an API that is no place for pages; a route that does serve one sets its own.
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


@dataclass
class Record:
    """What a request may do and what its log line will say; filled in while it is served. Never its text."""

    request_id: str
    send: Send
    """Below all layers but the outermost: they look at the head of an answer, never at its body."""
    started: float = field(default_factory=time.monotonic)
    status: int | None = None
    log_fields: dict[str, Any] = field(default_factory=dict)
    owner: str = ""
    """The id of the key that was shown; empty where none is needed."""
    may_admin: bool = False
    """Whether it may do what concerns everybody who is served. Guards give rights; a new record has none."""
    trace: str = ""
    """Names the span of its trace, where there is one."""
    models: tuple[str, ...] | None = ()
    """The models it is for, each by any of its names; None: all."""

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether it may use, and hear of, the model that has these names."""
        return self.models is None or not set(self.models).isdisjoint(names)

    def elapsed(self) -> float:
        return time.monotonic() - self.started


def record_of(scope: Scope) -> Record:
    record: Record = scope[_SCOPE_KEY]
    return record


class Guard(Protocol):
    def admit(self, scope: Scope, record: Record) -> Callable[[], None] | None:
        """Raises ApiError, or returns what to call when the request is over, if anything."""


class Gate:
    def __init__(self, app: ASGIApp, guard: Guard, cors_origins: Sequence[str] = ()) -> None:
        self._app = app
        self._guard = guard
        # Outside the guard: a browser asks without a key whether it may send one, and reads refusals too.
        self._guarded: ASGIApp = self._admit
        if cors_origins:
            self._guarded = CORSMiddleware(
                self._admit,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(_request_id(Headers(scope=scope).get(_HEADER)), send)
        scope[_SCOPE_KEY] = record
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = record.status or message["status"]
                headers = MutableHeaders(scope=message)
                headers[_HEADER] = record.request_id
                if record.trace:
                    headers["traceresponse"] = record.trace
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # Clients ask with HEAD whether a server is there. The routes see a GET; the server below still knows the real
        # method, and sends the headers alone.
        seen = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self._guarded(seen, receive, send_named)
        except Exception:
            log.exception("request %s broke", record.request_id)
            if started:
                raise
            await internal().response(scope["path"], record.request_id)(scope, receive, send_named)
        finally:
            _write_line(scope, record)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            leave = self._guard.admit(scope, record)
        except ApiError as error:
            await error.response(scope["path"], record.request_id)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if leave:
                leave()


def _request_id(offered: str | None) -> str:
    return offered if offered and _SANE_ID.fullmatch(offered) else uuid.uuid4().hex


def _write_line(scope: Scope, record: Record) -> None:
    # The path as it came: decoded, it could hold a line break.
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "backslashreplace")[:_LONGEST_PATH]
    fields = {
        "method": scope["method"],
        "path": path,
        "status": record.status,
        "request_id": record.request_id,
        "seconds": round(record.elapsed(), 4),
        **({"key": record.owner} if record.owner else {}),
        **record.log_fields,
    }
    # Whoever watches asks every second.
    quiet = path.startswith(_UNREAD) or (scope["method"] == "GET" and path.startswith(_WATCHED))
    log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})
