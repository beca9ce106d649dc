"""Looks after processes by their beats, and kills those that are dead without having ended.

What happens then is what always happens when a process ends: whoever waits for it starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

import psutil

from chorus.platform.process.beats import Beat, Monitor, Phase, ProcessState, Seen, Verdict, verdict
from chorus.platform.process.looks import Looks
from chorus.platform.process.no_memory import MemoryKills
from chorus.platform.process.timing import DEFAULTS, WatchTimes

log = logging.getLogger("chorus.watch")


@dataclass
class Watched:
    name: str
    monitor: Monitor
    timing: WatchTimes
    pid: int | None = None
    """None: the beat tells it, for a process that somebody else started for us."""
    place: int = 0
    death: str = ""
    """Why it was killed, once it was."""
    served_at: float | None = None
    """When it and all beside it were first seen to serve."""
    seen: Seen | None = None
    process: psutil.Process | None = field(default=None, repr=False)

    @property
    def beat(self) -> Beat:
        return self.monitor.read(self.place)

    @property
    def memory(self) -> int:
        """What it holds, as the system counts it, or as it says itself where it knows more; 0: it has ended."""
        beat = self.beat
        try:
            return max(beat.held_bytes, psutil.Process(self.pid or beat.pid).memory_info().rss)
        except psutil.Error:
            return 0


class Watcher:
    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self.served_at: float | None = None
        """When all were first seen to serve."""
        self.memory_kills = MemoryKills()

    def add(self, watched: Watched) -> None:
        self._watched.append(watched)

    def drop(self, watched: Watched) -> None:
        self._watched.remove(watched)

    def drop_all(self) -> None:
        self._watched.clear()

    @property
    def all_serve(self) -> bool:
        return bool(self._watched) and all(watched.beat.phase is Phase.SERVING for watched in self._watched)

    async def run(self) -> None:
        """For ever."""
        looks = Looks(time.monotonic())
        while True:
            now = time.monotonic()
            pause = min((each.timing.look_seconds for each in self._watched), default=DEFAULTS.look_seconds)
            late = looks.look(now, pause)
            for watched in self._watched:
                look(watched, now, late)
            if self.all_serve:
                self._note_service(now)
            self.memory_kills.look(now)
            await asyncio.sleep(pause)

    def _note_service(self, now: float) -> None:
        self.served_at = self.served_at or now
        for watched in self._watched:
            watched.served_at = watched.served_at or now


def look(watched: Watched, now: float, late: bool = False) -> None:
    """One look at one process, at whose end it may have been killed; `late`: what went before does not count."""
    beat = watched.beat
    watched.seen = Seen.at(now, beat) if late or watched.seen is None else watched.seen.then(beat, now)
    found = verdict(watched.seen, _state(watched, beat), now, watched.timing)
    if found is Verdict.ALIVE or watched.death or watched.process is None:
        return
    doing = watched.seen.beat.phase.name.lower()
    watched.death = f"{found.value}: no sign of life for {_quiet(watched.seen, now):.1f} s while {doing}"
    log.error("%s (process %d) is %s; killing it", watched.name, watched.process.pid, watched.death)
    with contextlib.suppress(psutil.Error):
        watched.process.kill()


def _quiet(seen: Seen, now: float) -> float:
    return now - (min(seen.since, seen.loop_since) if seen.beat.loop_tick else seen.since)


def _state(watched: Watched, beat: Beat) -> ProcessState:
    try:
        if watched.process is None and (pid := watched.pid or beat.pid):
            watched.process = psutil.Process(pid)
        status = watched.process.status() if watched.process else psutil.STATUS_RUNNING
    except psutil.Error:
        return ProcessState.GONE
    if status == psutil.STATUS_STOPPED:
        return ProcessState.STOPPED
    return ProcessState.GONE if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else ProcessState.RUNNING
