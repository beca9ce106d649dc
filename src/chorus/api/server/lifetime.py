"""How a running request can end from outside: its client left, its time is up, or the server goes down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from types import TracebackType

from starlette.types import Receive

from chorus.api.errors import ApiError, unavailable
from chorus.errors import InternalSignal


class Cause(Enum):
    CLIENT_GONE = "client_gone"
    TIME_UP = "timeout"
    SHUTDOWN = "shutdown"


class Interrupted(InternalSignal):
    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause

    def as_error(self) -> ApiError:
        match self.cause:
            case Cause.TIME_UP:
                return ApiError(
                    504, "The request took longer than this server allows.", type="timeout_error", code="timeout"
                )
            case Cause.SHUTDOWN:
                return unavailable("The server is shutting down; send the request again.", "shutting_down")
            case Cause.CLIENT_GONE:
                return ApiError(499, "The client left.", code="client_gone")


class Lifetime:
    """The block inside is cancelled when the lifetime ends, and the block's user sees Interrupted."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._cause = Cause.TIME_UP
        self._ended = False

    def end(self, cause: Cause) -> None:
        if self._ended or self._timeout.expired():
            return
        self._ended = True
        self._cause = cause
        self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Lifetime:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # From here on an end comes too late, and the timeout would not take it.
        self._ended = True
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise Interrupted(self._cause) from None


class Lifetimes:
    """All requests that run now, so that a shutdown can end them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: set[Lifetime] = set()
        self._over = False

    @property
    def running(self) -> int:
        return len(self._running)

    def end_all(self) -> None:
        self._over = True
        for lifetime in list(self._running):
            lifetime.end(Cause.SHUTDOWN)

    @asynccontextmanager
    async def begin(self, receive: Receive) -> AsyncIterator[None]:
        """Around the answering of a request whose body was read: then `receive` tells only that the client left."""
        if self._over:
            raise Interrupted(Cause.SHUTDOWN)
        async with Lifetime(self._seconds) as lifetime:
            self._running.add(lifetime)
            watcher = asyncio.create_task(_end_with_client(receive, lifetime))
            try:
                yield
            finally:
                watcher.cancel()
                self._running.discard(lifetime)


async def _end_with_client(receive: Receive, lifetime: Lifetime) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    lifetime.end(Cause.CLIENT_GONE)
