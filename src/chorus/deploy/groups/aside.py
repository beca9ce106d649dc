"""Work that takes its time, beside the event loop of a server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """In a thread that a server which ends does not wait for: a download takes its time."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        if not done.done():
            act()

    def run() -> None:
        try:
            result = work()
            act = lambda: done.set_result(result)  # noqa: E731
        except Exception as error:
            reason = error
            act = lambda: done.set_exception(reason)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, act)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
