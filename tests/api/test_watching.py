"""An answer to somebody who watches: how it begins, and every way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from chorus.api.errors import ApiError, unavailable
from chorus.api.server.lifetime import Lifetimes
from chorus.api.watching import WatchResponse

LONG = 60.0
LAST = {"type": "http.response.body", "body": b"", "more_body": False}


class Watcher:
    """A client, and what it was sent."""

    def __init__(self) -> None:
        self.lifetimes = Lifetimes(LONG)
        self.sent: list[Any] = []
        self.closed = False
        self.left = asyncio.Event()

    async def frames(self, number: int | None = None) -> AsyncGenerator[bytes, None]:
        """So many, or the first and then silence."""
        try:
            for each in range(number or 1):
                yield str(each).encode()
            if number is None:
                await asyncio.Event().wait()
        finally:
            self.closed = True

    async def watch(
        self, frames: AsyncGenerator[bytes, None], seconds: float = LONG, act: Callable[[], object] | None = None
    ) -> None:
        async def receive() -> Any:
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)
            if act and len(self.bodies) == 1:
                act()

        async with asyncio.timeout(LONG):
            await WatchResponse(self.lifetimes, frames, seconds)({}, receive, send)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


def test_it_ends_when_there_is_nothing_more_to_tell() -> None:
    async def act() -> None:
        watcher = Watcher()
        await watcher.watch(watcher.frames(3))
        assert watcher.sent[0]["status"] == 200
        assert watcher.bodies == [b"0", b"1", b"2", b""]
        assert watcher.sent[-1] == LAST
        assert watcher.closed

    asyncio.run(act())


def test_it_ends_when_its_time_is_up() -> None:
    async def act() -> None:
        watcher = Watcher()
        await watcher.watch(watcher.frames(), seconds=0.05)
        assert watcher.bodies == [b"0", b""]
        assert watcher.closed

    asyncio.run(act())


def test_it_ends_with_the_first_word_of_a_shutdown() -> None:
    async def act() -> None:
        watcher = Watcher()
        await watcher.watch(watcher.frames(), act=lambda: watcher.lifetimes.end_watching())
        assert watcher.bodies == [b"0", b""]
        assert watcher.closed

    asyncio.run(act())


def test_whoever_left_is_sent_nothing_more() -> None:
    async def act() -> None:
        watcher = Watcher()
        await watcher.watch(watcher.frames(), act=lambda: watcher.left.set())
        assert watcher.bodies == [b"0"]
        assert watcher.closed

    asyncio.run(act())


def test_a_refusal_before_the_first_frame_is_an_answer_of_its_own() -> None:
    async def full() -> AsyncGenerator[bytes, None]:
        raise unavailable("There is no place left.", "too_many_watchers")
        yield b""

    async def act() -> None:
        watcher = Watcher()
        with pytest.raises(ApiError, match="no place left"):
            await watcher.watch(full())
        watcher.lifetimes.end_watching()
        with pytest.raises(ApiError, match="shutting down"):
            await watcher.watch(watcher.frames())
        assert watcher.sent == []

    asyncio.run(act())
