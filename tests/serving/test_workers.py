from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from chorus.serving.workers import AT_ONCE_CHARACTERS, SHORT_CHARACTERS, Busy, Workers

DEADLINE = 120.0


def run(act: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE):
            await act()

    asyncio.run(bounded())


class Gate:
    """Work that goes on until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = 0

    def __call__(self) -> int:
        self.begun += 1
        assert self.open.wait(DEADLINE)
        return self.begun


def test_little_is_done_at_once_and_much_on_another_thread() -> None:
    async def act() -> None:
        workers = Workers(1)
        assert await workers.run(AT_ONCE_CHARACTERS - 1, threading.get_ident) == threading.get_ident()
        assert await workers.run(AT_ONCE_CHARACTERS, threading.get_ident) != threading.get_ident()

    run(act)


def test_short_work_does_not_wait_behind_long_work() -> None:
    async def act() -> None:
        workers, gate = Workers(10), Gate()
        long = [asyncio.create_task(workers.run(SHORT_CHARACTERS, gate)) for _ in range(5)]
        assert await workers.run(AT_ONCE_CHARACTERS, lambda: "done") == "done"
        gate.open.set()
        await asyncio.gather(*long)

    run(act)


def test_when_too_much_waits_the_next_is_told_and_later_ones_are_taken_again() -> None:
    async def act() -> None:
        workers, gate = Workers(2), Gate()
        taken = [asyncio.create_task(workers.run(SHORT_CHARACTERS, gate)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 large requests wait"):
            await workers.run(SHORT_CHARACTERS, gate)
        gate.open.set()
        await asyncio.gather(*taken)
        assert await workers.run(SHORT_CHARACTERS, lambda: "done") == "done"

    run(act)


def test_work_whose_client_left_before_it_began_never_begins() -> None:
    async def act() -> None:
        workers, gate = Workers(5), Gate()
        first, second = (asyncio.create_task(workers.run(SHORT_CHARACTERS, gate)) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        # Only now has the thread's own queue heard of it.
        await asyncio.wait([second])
        gate.open.set()
        await first
        assert await workers.run(SHORT_CHARACTERS, lambda: gate.begun) == 1

    run(act)
