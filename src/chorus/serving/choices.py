"""Several answers to one request, run side by side and read as one stream."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Sequence

from chorus.serving.answer import Answer, AnswerDelta, AnswerEnd

# How many events may wait for a client that reads slowly; the engine's own events wait behind them.
_WAITING_EVENTS = 64

Event = AnswerDelta | AnswerEnd


def choice_seed(seed: int, number: int) -> int:
    """The first choice uses the seed itself, so that asking for more choices does not change it."""
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Choices(AsyncIterator[Event]):
    """The events of all answers, as they come. One that fails takes the others with it."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = tuple(answers)
        self._unfinished = len(self._answers)
        self._tasks: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue(_WAITING_EVENTS)

    def __len__(self) -> int:
        return len(self._answers)

    def __anext__(self) -> Awaitable[Event]:
        return self._answers[0].__anext__() if len(self._answers) == 1 else self._next_of_many()

    async def accepted(self) -> None:
        """Submits all and waits until the engine has taken them; where it refuses one, the others are given up."""
        if len(self._answers) == 1:
            await self._answers[0].accepted()
            return
        waits = [asyncio.create_task(answer.accepted()) for answer in self._answers]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()

    async def _next_of_many(self) -> Event:
        if not self._unfinished:
            raise StopAsyncIteration
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._pump(answer)) for answer in self._answers]
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        self._unfinished -= isinstance(event, AnswerEnd)
        return event

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answer in self._answers:
            await answer.aclose()

    async def _pump(self, answer: Answer) -> None:
        try:
            async for event in answer:
                await self._events.put(event)
        except Exception as error:
            await self._events.put(error)
