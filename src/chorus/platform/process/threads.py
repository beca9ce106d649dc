"""Work in threads that is not left before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def to_the_end(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """Like asyncio.to_thread, but one that is cancelled goes when the work is done: what it did can be undone then."""
    working = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
