"""HTTP/1.1 on the wire: the fast parser, in connections that always come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from email.utils import formatdate
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from chorus.api.server.connections import Pool
from chorus.config.sections import Limits

LONGEST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
MOST_WAITING = 8
"""Requests that a client may send before the first of them is answered."""
LINGER_SECONDS = 5.0
"""After the last word: for a client that is still writing, or slow to read."""
SCOPE_KEY = "chorus.connection"
_REFUSAL = b"%bdate: %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"


class SharedState(ServerState):
    """What all connections share; its date is made when a response wants it, so that no clock has to tick for it."""

    _second = -1
    _date = b""

    def __init__(self, limits: Limits, pool: Pool) -> None:
        super().__init__()
        self.limits = limits
        self.pool = pool
        self.retiring = False
        """Another process accepts connections now, and those that are open here come to their end."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        return [(b"date", self._date)]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Where uvicorn would keep the date of its last tick."""


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Transport:
    """What uvicorn takes for the transport: closing it is left to the connection, which lets the client hear us out."""

    def __init__(self, real: asyncio.Transport, connection: BoundedHttp) -> None:
        self._real = real
        self._connection = connection
        self._closing = False
        self.write = real.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def is_closing(self) -> bool:
        return self._closing or self._real.is_closing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._connection.part()


class BoundedHttp(HttpToolsProtocol):
    """Nothing that a client sends, holds back or does not read lasts for ever or takes memory without end."""

    server_state: SharedState

    def __init__(
        self,
        config: Config,
        server_state: SharedState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = server_state.limits
        self._pool = server_state.pool
        self._socket: socket.socket | None = None
        self._real: asyncio.Transport | None = None
        self._answered: RequestResponseCycle | None = None
        """The request whose turn it is; `cycle` is the last that came."""
        self._in_head = False
        self._arriving = False
        """A head is here, and not yet all of its body."""
        self._keeps_alive = False
        self._deaf = False
        """What still comes is thrown away."""
        self._loose_bytes = 0
        """Those that came since the last whole head or piece of a body: a head's, trailers, or nothing that we know."""
        self._unread_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # Its place among the others

    def enter(self, accepted: socket.socket) -> None:
        """From the first moment, when there is no transport yet."""
        self._socket = accepted
        self._pool.enter(self)

    def leave(self) -> None:
        self._pool.leave(self)

    def known(self, by_key: bool) -> None:
        self._pool.mark(self, known=by_key)

    def end(self) -> None:
        if self._real:
            self._real.abort()
        elif self._socket:
            # In the middle of a handshake: its transport sees that the other side has gone.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._real = cast(asyncio.Transport, transport)
        self._expect_end_in(self._limits.head_timeout_seconds)
        super().connection_made(cast(asyncio.Transport, _Transport(self._real, self)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        self._expect_nothing()
        if (cycle := self._answered) and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._loose_bytes += len(data)
        if self._deaf:
            if self._loose_bytes > self._limits.max_body_bytes:
                self.end()
            return
        try:
            self._parse(data)
            if self._loose_bytes > LONGEST_HEAD_BYTES:
                raise _Refused(431, f"The head of a request may have {LONGEST_HEAD_BYTES} bytes.")
        except _Refused as refused:
            self._refuse(refused)
            return
        if self._loose_bytes and not self._arriving and self._deadline is None:
            self._expect_end_in(self._limits.head_timeout_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._has_read()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None

    # From the parser

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            self._parse(self._head_without_upgrade() + data[asked.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _Refused):
                raise error.__context__ from None
            raise _Refused(400, "This is no HTTP request.") from None

    def _head_without_upgrade(self) -> bytes:
        """For a parser that never saw the wish: who asks for another protocol is answered in this one."""
        self.parser = httptools.HttpRequestParser(self)
        lines = [b"%b %b HTTP/1.1" % (self.scope["method"].encode(), self.url)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # A trailer: nobody here wants to know.
        if len(self.headers) >= MOST_HEADERS:
            raise _Refused(431, f"A request may have {MOST_HEADERS} headers.")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope["method"] = self.parser.get_method().decode("ascii")
        _check_head(self.scope["method"], self.parser.get_http_version(), self.headers)
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= MOST_WAITING:
            raise _Refused(400, f"{MOST_WAITING} requests may be sent before the first is answered.")
        self._loose_bytes = 0
        self._expect_nothing()
        self._arriving = True
        self.scope[SCOPE_KEY] = self  # type: ignore[literal-required]
        super().on_headers_complete()
        # Uvicorn stops reading behind a request that has to wait, and would not see that the client has gone.
        self.flow.resume_reading()
        # Until all of it is here: whoever is answered before that would go on with what we can no longer tell apart.
        self._keeps_alive = self.cycle.keep_alive and not self.server_state.retiring
        self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._loose_bytes = 0
        self._arriving = False
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
            self._pool.mark(self, busy=True)
        super().on_message_complete()

    # To and from the application

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._pool.mark(self, busy=False)
        super().on_response_complete()

    def retire(self) -> None:
        """Ends with the answer under way. A client that was promised more may be asking already, and is heard for a
        moment; one that never asked has the time that every head has."""
        self.timeout_keep_alive = min(self.timeout_keep_alive, round(LINGER_SECONDS))
        if self.cycle is None:
            return
        if not self.cycle.response_started:
            self._keeps_alive = self.cycle.keep_alive = False
        elif self.timeout_keep_alive_task:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def shutdown(self) -> None:
        self._keeps_alive = False
        super().shutdown()
        # The process is about to end: nobody waits for those who are not reading an answer.
        if self._deaf and self._real and not self._real.get_write_buffer_size():
            self.end()

    # How it ends

    def _refuse(self, refused: _Refused) -> None:
        """Hears no more; whoever is waiting for no other answer is told why."""
        self._deaf = True
        self._expect_nothing()
        self.pipeline.clear()
        if (cycle := self._answered) and not cycle.response_complete:
            if cycle.response_started or cycle is not self.cycle or not self._arriving:
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        text = refused.reason.encode() + b"\n"
        date = self.server_state.default_headers[0][1]
        self.transport.write(_REFUSAL % (STATUS_LINE[refused.status], date, len(text), text))
        self.transport.close()

    def part(self) -> None:
        """A plain close would take our last words from a client that is still sending, so that is let run out."""
        assert self._real is not None
        self._deaf = True
        self._has_read()
        self._expect_end_in(LINGER_SECONDS)
        if not self._arriving and not self._loose_bytes:
            self._real.close()
            return
        if self._real.can_write_eof():
            self._real.write_eof()
        self.flow.resume_reading()

    def _expect_end_in(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self._too_late)

    def _expect_nothing(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._deaf and self._has_read():
            self._expect_end_in(LINGER_SECONDS)
        elif self._deaf:
            self.end()
        elif self._loose_bytes:
            self._refuse(_Refused(408, f"The head of a request may take {self._limits.head_timeout_seconds:g} s."))
        else:
            self.transport.close()

    def _expect_reading(self) -> None:
        self._stalled = self.loop.call_later(self._limits.write_timeout_seconds, self._end_unless_read)

    def _end_unless_read(self) -> None:
        if self._has_read():
            self._expect_reading()
        else:
            self.end()

    def _has_read(self) -> bool:
        """Whether the client took some of what waits for it since this was last asked."""
        assert self._real is not None
        before, self._unread_bytes = self._unread_bytes, self._real.get_write_buffer_size()
        return 0 < self._unread_bytes < before


def _check_head(method: str, version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """What the parser lets pass and two programs in a row could read in two ways."""
    hosts = sum(name == b"host" for name, _ in headers)
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.0", "1.1"):
        raise _Refused(400, "HTTP/1.1 is spoken here.")
    if method == "CONNECT":
        raise _Refused(400, "This is no proxy.")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise _Refused(400, "A request has one Host header.")
    if codings and (codings != [b"chunked"] or version == "1.0"):
        raise _Refused(400, "The one transfer coding is chunked, in HTTP/1.1.")
