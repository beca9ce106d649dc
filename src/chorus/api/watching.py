"""An answer that goes on for as long as somebody watches: it ends with its client, its time, or the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from chorus.api.respond import STREAM_HEADERS
from chorus.api.server.lifetime import Cause, Interrupted, Lifetimes


class WatchResponse(Response):
    """Server-sent events. A refusal that comes before the first of them is an answer of its own."""

    def __init__(self, lifetimes: Lifetimes, frames: AsyncGenerator[bytes, None], seconds: float) -> None:
        """After `seconds` whoever watches has to ask again."""
        super().__init__()
        self._lifetimes = lifetimes
        self._frames = frames
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async with self._lifetimes.watch(receive, self._seconds), aclosing(self._frames) as frames:
                async for frame in frames:
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        except Interrupted as interruption:
            if not begun:
                raise interruption.as_error() from None
            if interruption.cause is Cause.CLIENT_GONE:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
