"""The listening socket: lets connections in, a few at a time, and never more than there is room for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from chorus.api.server.connections import Pool
from chorus.api.server.protocol import LINGER_SECONDS, BoundedHttp
from chorus.security.tls import Certificate

log = logging.getLogger(__name__)

# Between two looks at those who are already in: whoever speaks at once is heard before a crowd has come in behind.
_AT_ONCE = 16
_BREATH_SECONDS = 0.1
_NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Door:
    def __init__(
        self,
        listener: socket.socket,
        pool: Pool,
        make: Callable[[], BoundedHttp],
        handshake_seconds: float,
        certificate: Certificate | None,
    ) -> None:
        self._listener = listener
        self._pool = pool
        self._make = make
        self._handshake_seconds = handshake_seconds
        self._certificate = certificate
        self._loop = asyncio.get_running_loop()
        self._coming: dict[asyncio.Task[None], BoundedHttp] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._told_why = False
        listener.setblocking(False)
        self._open()

    def _open(self) -> None:
        self._loop.add_reader(self._listener, self._let_in)

    @property
    def empty(self) -> bool:
        """Whether nobody is between the door and the room."""
        return not self._coming

    def shut(self) -> None:
        """Nobody else comes in here."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    def close(self) -> None:
        """Who is not yet inside has to leave, too."""
        self.shut()
        for connection in self._coming.values():
            connection.end()

    def _let_in(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._take_breath(error)
                return
            self._told_why = False
            self._admit(accepted)

    def _take_breath(self, error: OSError) -> None:
        """The socket stays readable: without a pause this would be tried again at once, for ever."""
        if not self._told_why:
            self._told_why = True
            log.warning("cannot accept a connection: %s", error.strerror)
        if error.errno in _NO_MORE_FILES:
            self._pool.end_one()
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_BREATH_SECONDS, self._open)

    def _admit(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if not self._pool.make_room():
            with accepted, contextlib.suppress(OSError):
                if self._certificate is None:
                    accepted.send(_FULL)
            return
        connection = self._make()
        connection.enter(accepted)
        task = self._loop.create_task(self._introduce(connection, accepted))
        self._coming[task] = connection
        task.add_done_callback(self._coming.pop)

    async def _introduce(self, connection: BoundedHttp, accepted: socket.socket) -> None:
        tls: dict[str, Any] = {}
        if self._certificate:
            tls = {
                "ssl": self._certificate.context(),
                "ssl_handshake_timeout": self._handshake_seconds,
                "ssl_shutdown_timeout": LINGER_SECONDS,
            }
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, **tls)
        except OSError as error:
            # Strangers try all sorts of things instead of a handshake, or go away in the middle of it.
            log.debug("a connection came to nothing: %s", error)
            connection.leave()
