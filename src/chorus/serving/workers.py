"""Threads for work that grows with what a client sent: rendering, tokenizing, writing grammars.

A thread cannot be killed, so whatever begins here is bounded by the limits on a request and linear in it. Templates
are the model's own, in Jinja's sandbox: a client fills them and cannot bring one. Tokenizers let other threads run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from chorus.errors import ChorusError

# About a millisecond of tokenizing; more than that would be felt by every running stream.
AT_ONCE_CHARACTERS = 2000
# About a quarter of a second.
SHORT_CHARACTERS = 256 * 1024

Result = TypeVar("Result")


class Busy(ChorusError):
    """So much waits for these threads that nothing more is taken; the same may succeed later."""


class Workers:
    """Short work never waits behind long work, and what waits is bounded."""

    def __init__(self, most_waiting: int) -> None:
        self._short = _Lane(2, most_waiting)
        self._long = _Lane(1, most_waiting)

    async def run(self, characters: int, work: Callable[[], Result]) -> Result:
        """At once where little is to be done."""
        if characters < AT_ONCE_CHARACTERS:
            return work()
        return await (self._short if characters < SHORT_CHARACTERS else self._long).run(work)


class _Lane:
    def __init__(self, threads: int, most_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._most_waiting = most_waiting
        self._room = threading.BoundedSemaphore(threads + most_waiting)

    async def run(self, work: Callable[[], Result]) -> Result:
        if not self._room.acquire(blocking=False):
            raise Busy(f"{self._most_waiting} large requests wait to be read already; try again later")
        future = self._threads.submit(work)
        # Also where its client left before it began: then it never does.
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)
