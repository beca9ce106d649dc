"""Around every request: its id, its one log line, and a last answer where something broke."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chorus.api.errors import internal

log = logging.getLogger("chorus.api.server.access")

_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SCOPE_KEY = "chorus.record"
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
    """What a request's log line will say; filled in while it is served. Never its text."""

    request_id: str
    send: Send
    """Below all layers but the outermost: they look at the head of an answer, never at its body."""
    started: float = field(default_factory=time.monotonic)
    status: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    owner: str = ""
    """The id of the key that was shown; empty where none is needed."""

    def elapsed(self) -> float:
        return time.monotonic() - self.started


def record_of(scope: Scope) -> Record:
    record: Record = scope[_SCOPE_KEY]
    return record


class AccessLog:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            log.exception("request %s broke", record.request_id)
            if started:
                raise
            await internal().response(scope["path"], record.request_id)(scope, receive, send_named)
        finally:
            _write_line(scope, record)


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
        **record.figures,
    }
    quiet = path.startswith("/health")
    log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})
