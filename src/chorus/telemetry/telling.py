"""How a process tells what happened: one call that never waits and never fails, and a thread that writes it down.

A process that nobody has told where its journal is tells nothing.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chorus
from chorus.platform.storage.paths import state_dir
from chorus.telemetry import events, journal
from chorus.telemetry.events import LONGEST_TEXT, Event, Kind

BURST_SECONDS = 60.0
"""Of what is only counted, so long after the first one the number of those that followed is told."""
_MOST_WAITING = 1000
_END_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """Where a process tells what happens, and of whom."""

    folder: Path
    server: str = ""
    model: str = ""
    """The one that it is about, where there is one only."""


@dataclass
class _Burst:
    """Events of one kind that came so shortly after each other that only their number is told."""

    until: float
    last: Event
    more: int = 0


class Teller:
    """Writes to one journal, from a thread of its own: a disk that stands still holds up nobody."""

    def __init__(self, place: Place, burst_seconds: float = BURST_SECONDS) -> None:
        self.place = place
        self._burst_seconds = burst_seconds
        self._waiting: queue.Queue[tuple[Event, bool] | None] = queue.Queue(_MOST_WAITING)
        self._bursts: dict[tuple[str, str], _Burst] = {}
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def tell(self, event: Event, counted: bool = False) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((event, counted))

    def end(self) -> None:
        """When what was told is written, or after a bounded time."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_END_SECONDS)
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while True:
            due = min((burst.until for burst in self._bursts.values()), default=None)
            try:
                item = self._waiting.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                self._close_bursts(time.monotonic())
                continue
            if item is None:
                self._close_bursts(float("inf"))
                return
            self._take(*item)

    def _take(self, event: Event, counted: bool) -> None:
        burst = self._bursts.get((event.kind, event.model)) if counted else None
        if burst:
            burst.last, burst.more = event, burst.more + 1
            return
        if counted:
            self._bursts[event.kind, event.model] = _Burst(time.monotonic() + self._burst_seconds, event)
        journal.append(self.place.folder, event)

    def _close_bursts(self, now: float) -> None:
        for key, burst in list(self._bursts.items()):
            if burst.until > now:
                continue
            if burst.more:
                told = f"{burst.last.text[: LONGEST_TEXT - 40]} ({burst.more} more like it)"
                numbers = {**burst.last.numbers, "more": burst.more}
                journal.append(self.place.folder, replace(burst.last, text=told, numbers=numbers))
                burst.until, burst.more = now + self._burst_seconds, 0
            else:
                del self._bursts[key]


_own: Teller | None = None


def begin(place: Place | None) -> None:
    """From now on this process tells what happens there; None: nowhere."""
    global _own
    end()
    _own = Teller(place) if place else None


def end() -> None:
    global _own
    if _own:
        _own.end()
    _own = None


def keep_journal(server: str) -> None:
    """From now on what happens to this server is written down, also by the processes that it starts."""
    folder = journal.folder_in(state_dir()).absolute()
    begin(Place(folder, server))
    before = journal.read(folder, limit=1, wanted=lambda event: event.server == server)
    ends = {kind.name for kind in (events.SERVER_STOPPED, events.SERVER_FAILED, events.SERVER_VANISHED)}
    if before and before[0].kind not in ends:
        tell(events.SERVER_VANISHED)


@contextlib.contextmanager
def from_begin_to_end(url: str, models: str) -> Iterator[None]:
    """Write down that the server begins, and how it ends."""
    tell(events.SERVER_STARTED, url=url, models=models, version=chorus.__version__)
    try:
        yield
        tell(events.SERVER_STOPPED, url=url)
    except BaseException as error:
        tell(events.SERVER_FAILED, url=url, why=str(error) or type(error).__name__)
        raise
    finally:
        end()


def place(model: str = "") -> Place | None:
    """For a process that this one starts."""
    return replace(_own.place, model=model) if _own else None


def tell(
    kind: Kind, *, model: str = "", node: str = "", rank: int | None = None, cause: str = "", **given: Any
) -> None:
    """Something has happened; `given` are the fields of the kind's sentence."""
    where = _own.place if _own else Place(Path())
    event = kind.happened(where.server, model or where.model, node, rank, cause, **given)
    if _own:
        _own.tell(event, kind.counted)
