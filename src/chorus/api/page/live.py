"""One picture of the server a second, written once for each kind of viewer however many watch; none while none do."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from chorus.api.errors import unavailable
from chorus.api.server.gate import Record

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MOST = 120
"""Streams at once. A browser has one, whatever the number of its pages."""
MOST_ALIKE = 60
"""Of these, with one key: nobody can take all places."""

S = TypeVar("S")


@dataclass(frozen=True)
class Viewer:
    """What decides how much somebody is shown; those who are equal are sent the same bytes."""

    owner: str
    """The key whose requests are shown; empty: all requests."""
    may_admin: bool
    models: tuple[str, ...] | None

    @staticmethod
    def of(record: Record) -> Viewer:
        return Viewer("" if record.may_admin else record.owner, record.may_admin, record.models)

    def may_use(self, names: Iterable[str]) -> bool:
        return self.models is None or not set(self.models).isdisjoint(names)


class Live(Generic[S]):
    def __init__(
        self,
        take: Callable[[], Awaitable[S]],
        write: Callable[[S, Viewer], bytes],
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """`take` looks at everything, `write` says what of it a viewer sees."""
        self._take = take
        self._write = write
        self._tick_seconds = tick_seconds
        self._watching: Counter[Viewer] = Counter()
        self._scene: S | None = None
        self._frames: dict[Viewer, bytes] = {}
        self._ticked = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self.written = 0
        """How often anything was written."""

    @property
    def watchers(self) -> int:
        return self._watching.total()

    async def frames(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        """The latest one each; whoever reads slowly misses some, and nothing is kept for them."""
        if self.watchers >= MOST or self._watching[viewer] >= MOST_ALIKE:
            raise unavailable("Too many browsers watch this server now; close some of them.", "too_many_watchers")
        self._watching[viewer] += 1
        try:
            if self._ticking is None:
                self._ticking = asyncio.create_task(self._tick(), name="live")
            if self._scene is not None:
                yield self._frame(viewer, self._scene)
            while True:
                await self._ticked.wait()
                assert self._scene is not None
                yield self._frame(viewer, self._scene)
        finally:
            self._watching[viewer] -= 1
            if not self._watching[viewer]:
                del self._watching[viewer]
            if not self._watching and self._ticking:
                self._ticking.cancel()
                self._ticking, self._scene, self._frames = None, None, {}

    def _frame(self, viewer: Viewer, scene: S) -> bytes:
        frame = self._frames.get(viewer)
        if frame is None:
            frame = self._frames[viewer] = self._write(scene, viewer)
            self.written += 1
        return frame

    async def _tick(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                self._scene = await self._take()
            except Exception:
                # Whoever watches sees that nothing comes; the next tick may do better.
                log.exception("there is no picture of this second")
            else:
                self._frames = {}
                ticked, self._ticked = self._ticked, asyncio.Event()
                ticked.set()
            await asyncio.sleep(max(self._tick_seconds - (clock() - began), self._tick_seconds / 4))
