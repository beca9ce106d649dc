"""The journal of events as a front end shows it: what was written, and what comes, to all who watch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from chorus.api.errors import unavailable
from chorus.telemetry import journal
from chorus.telemetry.events import Event
from chorus.telemetry.telling import Place

LOOK_SECONDS = 0.25
"""How late those who watch hear of an event, at most."""
MOST_WATCHERS = 64
_MOST_WAITING = 1000
"""Events that wait for a watcher; one that lags further behind is let go."""

Inbox = asyncio.Queue[Event | None]


class Latest:
    """The last events of a journal, the latest first."""

    def __init__(self, most: int) -> None:
        self.events: deque[Event] = deque(maxlen=most)
        self._tail: journal.Tail | None = None
        self.looking = asyncio.Lock()

    def look(self, folder: Path, wanted: Callable[[Event], bool]) -> list[Event]:
        """What is new since the last look; reads files."""
        if self._tail is None:
            self._tail = journal.Tail(folder)
            return journal.read(folder, limit=self.events.maxlen, wanted=wanted)
        return [event for event in self._tail.new() if wanted(event)]

    def add(self, event: Event) -> None:
        if event not in self.events:  # one may come between the first look at the end and the reading
            self.events.appendleft(event)


class EventWatch:
    """New events of one server: one look at the journal for all who watch, and none where nobody does."""

    def __init__(self, place: Place | None) -> None:
        self._place = place
        self._watching = 0
        self._inboxes: set[Inbox] = set()
        self._tail: journal.Tail | None = None
        self._look = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def read(self, since: float, limit: int) -> list[Event]:
        """What was written since then, the latest last."""
        place = self._place
        return await asyncio.to_thread(journal.read, place.folder, since, limit, self._is_ours) if place else []

    async def latest(self, known: Latest) -> None:
        """Brings what somebody keeps of the journal up to date; where nothing was written, by a look at its size."""
        if place := self._place:
            # What was read is kept, also where whoever watched has left meanwhile.
            await asyncio.shield(self._bring(known, place.folder))

    async def _bring(self, known: Latest, folder: Path) -> None:
        async with known.looking:
            for event in await asyncio.to_thread(known.look, folder, self._is_ours):
                known.add(event)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Inbox]:
        """What comes from now on; None: this watcher lags too far behind. Raises ApiError where too many watch."""
        if self._watching >= MOST_WATCHERS:
            raise unavailable(f"{MOST_WATCHERS} clients watch the events already.", "too_many_watchers")
        inbox: Inbox = asyncio.Queue(_MOST_WAITING)
        self._watching += 1
        try:
            # What was written before this one came is news to the others alone.
            await self._look_once()
            self._inboxes.add(inbox)
            if self._looking is None and self._place:
                self._looking = asyncio.create_task(self._keep_looking())
            yield inbox
        finally:
            self._inboxes.discard(inbox)
            self._watching -= 1
            if not self._watching and self._looking:
                self._looking.cancel()
                self._looking = self._tail = None

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look_once()

    async def _look_once(self) -> None:
        if self._place is not None:
            # The others hear what was read, also where the one that looked has left meanwhile.
            await asyncio.shield(self._look_for_all(self._place.folder))

    async def _look_for_all(self, folder: Path) -> None:
        async with self._look:
            if self._tail is None:
                self._tail = await asyncio.to_thread(journal.Tail, folder)
            for event in await asyncio.to_thread(self._tail.new):
                if self._is_ours(event):
                    for inbox in self._inboxes:
                        _put(inbox, event)

    def _is_ours(self, event: Event) -> bool:
        """One journal may hold what several servers of a user tell."""
        return self._place is not None and event.server == self._place.server


def _put(inbox: Inbox, event: Event) -> None:
    if not inbox.full():
        inbox.put_nowait(event)
        return
    while not inbox.empty():
        inbox.get_nowait()
    inbox.put_nowait(None)
