"""How a running request can end from outside: its client left, its time is up, somebody ended it, or the server goes
down."""

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
    CANCELLED = "cancelled"


class Interrupted(InternalSignal):
    def __init__(self, cause: Cause, by: str = "") -> None:
        """`by`: who has cancelled it."""
        super().__init__(cause.value)
        self.cause = cause
        self._by = by

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
            case Cause.CANCELLED:
                # Clients send again by themselves what was refused with a 409 or a 5xx.
                return ApiError(499, f"The request was cancelled by {self._by}.", code="request_cancelled")


class Lifetime:
    """The block inside is cancelled when the lifetime ends, and the block's user sees Interrupted."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._cause = Cause.TIME_UP
        self._by = ""
        self._ended = False

    def end(self, cause: Cause, by: str = "") -> bool:
        """False where it comes too late."""
        if self._ended or self._timeout.expired():
            return False
        self._ended = True
        self._cause, self._by = cause, by
        self._timeout.reschedule(asyncio.get_running_loop().time())
        return True

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
            raise Interrupted(self._cause, self._by) from None


class Lifetimes:
    """All requests that run now, so that a shutdown can end them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: set[Lifetime] = set()
        self._watching: set[Lifetime] = set()
        self._over = False
        self._retiring = False

    @property
    def running(self) -> int:
        return len(self._running)

    def end_all(self) -> None:
        self._over = True
        for lifetime in list(self._running):
            lifetime.end(Cause.SHUTDOWN)

    def end_watching(self) -> None:
        """Nobody waits for those who only look on: they ask the next front end."""
        self._retiring = True
        for lifetime in list(self._watching):
            lifetime.end(Cause.SHUTDOWN)

    @asynccontextmanager
    async def begin(self, receive: Receive) -> AsyncIterator[Lifetime]:
        """Around the answering of a request whose body was read: then `receive` tells only that the client left."""
        if self._over:
            raise Interrupted(Cause.SHUTDOWN)
        async with _lasting(self._running, receive, self._seconds) as lifetime:
            yield lifetime

    @asynccontextmanager
    async def watch(self, receive: Receive, seconds: float) -> AsyncIterator[None]:
        """Around a stream that tells how the server is: it ends with the first word of a shutdown."""
        if self._retiring or self._over:
            raise Interrupted(Cause.SHUTDOWN)
        async with _lasting(self._watching, receive, seconds):
            yield


@asynccontextmanager
async def _lasting(all_of_them: set[Lifetime], receive: Receive, seconds: float) -> AsyncIterator[Lifetime]:
    async with Lifetime(seconds) as lifetime:
        all_of_them.add(lifetime)
        watcher = asyncio.create_task(_end_with_client(receive, lifetime))
        try:
            yield lifetime
        finally:
            watcher.cancel()
            all_of_them.discard(lifetime)


async def _end_with_client(receive: Receive, lifetime: Lifetime) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    lifetime.end(Cause.CLIENT_GONE)
