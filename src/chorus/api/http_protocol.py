"""HTTP/1.1 on the wire: the fast parser, with the bound on request heads that it lacks, and the date."""

from __future__ import annotations

import time
from email.utils import formatdate

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

LONGEST_HEAD_BYTES = 64 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class DatedState(ServerState):
    """What all connections share; its date is made when a response wants it, so that no clock has to tick for it."""

    _second = -1
    _date = b""

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


class BoundedHttp(HttpToolsProtocol):
    """Ends a connection whose request line and headers do not come to an end."""

    _reading_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._reading_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > LONGEST_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._reading_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reading_head = False
        super().on_headers_complete()
