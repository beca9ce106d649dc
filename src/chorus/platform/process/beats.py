"""Alive, not just running: a process ticks into a small piece of memory that its parent made, and the parent looks.

A beat is counters only, written in place without a lock or a system call, so that writing it never waits: not for a
full disk, not for whoever reads. Reading needs nothing from the process, so one that is stuck is seen as what it is.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from pathlib import Path

from chorus.platform import system
from chorus.platform.accelerator import mpi
from chorus.platform.process.timing import DEFAULTS, WatchTimes

VARIABLE = "CHORUS_BEAT"

_LAYOUT = struct.Struct("<QQIIQdQQQQ")
_PLACE_BYTES = 128
_LOOP_AT, _PID_AT, _PHASE_AT, _STEP_AT, _LOADED_AT, _HELD_AT, _DELIVERED_AT = 8, 16, 20, 24, 40, 56, 64


class Phase(IntEnum):
    STARTING = 0
    LOADING = 1
    JOINING = 2
    """Meeting the other ranks inside MLX, which keeps Python's lock meanwhile: nothing ticks."""
    WARMING = 3
    SERVING = 4
    ENDING = 5
    RECOVERING = 6
    """Would serve, but for somebody else who is lost."""


def longest_silence(phase: Phase, timing: WatchTimes) -> float:
    """How long a process may go without a tick while it does this."""
    if phase in (Phase.SERVING, Phase.RECOVERING):
        return timing.silence_seconds
    allowed = timing.join_silence_seconds if phase is Phase.JOINING else timing.start_silence_seconds
    return max(timing.silence_seconds, allowed)


@dataclass(frozen=True)
class Beat:
    """What a process says of itself. All zeros: it has not begun."""

    tick: int = 0
    loop_tick: int = 0
    """Of its event loop, where it has one that must not stand still."""
    pid: int = 0
    phase: Phase = Phase.STARTING
    step: int = 0
    step_at: float = 0.0
    loaded_bytes: int = 0
    total_bytes: int = 0
    held_bytes: int = 0
    """Memory that it holds, where it knows more than the system says of it."""
    delivered: int = 0
    """Tokens that front ends were sent."""


class Monitor:
    """The parent's side: memory for the beats of a program, one place for each of its processes."""

    def __init__(self, folder: Path, places: int = 1) -> None:
        size = places * _PLACE_BYTES
        self._places = places
        self._delivered_before = 0
        self._file: Path | None = None
        if sys.platform == "linux" and system.is_linux():
            # Memory and no file: a disk that hangs would hold up a write to a mapped page. Children find it by our id,
            # since mpirun closes what they would inherit.
            self._descriptor = os.memfd_create("chorus-beat")
            os.ftruncate(self._descriptor, size)
            self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self._path = tempfile.mkstemp(prefix="beat-", dir=folder)
            os.write(self._descriptor, bytes(size))
            self._file = Path(self._path)
        self._map = mmap.mmap(self._descriptor, size)

    def environment(self) -> dict[str, str]:
        return {VARIABLE: self._path}

    def read(self, place: int = 0) -> Beat:
        tick, loop_tick, pid, phase, *rest = _LAYOUT.unpack_from(self._map, place * _PLACE_BYTES)
        return Beat(tick, loop_tick, pid, Phase(phase), *rest)

    @property
    def delivered(self) -> int:
        """Tokens of all processes that this monitor was ever used for."""
        return self._delivered_before + sum(self.read(place).delivered for place in range(self._places))

    def reset(self) -> None:
        """For the next process: a monitor is used again rather than made again, when the disk may be full."""
        self._delivered_before = self.delivered
        self._map[:] = bytes(len(self._map))

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)
        if self._file:
            self._file.unlink(missing_ok=True)


class _Heart:
    """The process's own side; does nothing in a process that nobody watches."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._start = 0
        self._delivered = 0
        self.phase = Phase.STARTING
        self.timing = DEFAULTS

    def begin(self, path: str, place: int, timing: WatchTimes) -> None:
        self.timing = timing
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._start = place * _PLACE_BYTES
        self.write(_PID_AT, "<I", os.getpid())
        self.enter(Phase.STARTING)
        threading.Thread(target=self._tick, name="beat", daemon=True).start()
        # From then on no thread of Python's runs, while libraries may still have much to put away.
        atexit.register(self.enter, Phase.ENDING)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        # The tick first: a phase that allows less than the one before must not be seen with its old tick.
        self.write(0, "<Q", time.monotonic_ns())
        self.write(_PHASE_AT, "<I", phase)

    def deliver(self, tokens: int) -> None:
        self._delivered += tokens
        self.write(_DELIVERED_AT, "<Q", self._delivered)

    def write(self, at: int, layout: str, *values: float) -> None:
        if self._map:
            struct.pack_into(layout, self._map, self._start + at, *values)

    def _tick(self) -> None:
        while True:
            self.write(0, "<Q", time.monotonic_ns())
            time.sleep(self.timing.tick_seconds)


_heart = _Heart()


def begin() -> None:
    """Tick from now on, if the parent looks."""
    if path := os.environ.get(VARIABLE):
        _heart.begin(path, mpi.own_rank(), WatchTimes.told())


def enter(phase: Phase) -> None:
    _heart.enter(phase)


@contextlib.contextmanager
def during(phase: Phase) -> Iterator[None]:
    before = _heart.phase
    _heart.enter(phase)
    try:
        yield
    finally:
        _heart.enter(before)


def finished(step: int) -> None:
    _heart.write(_STEP_AT, "<Qd", step, time.time())


def loaded(done: int, total: int) -> None:
    _heart.write(_LOADED_AT, "<QQ", done, total)


def holds(memory: int) -> None:
    _heart.write(_HELD_AT, "<Q", memory)


def delivered(tokens: int) -> None:
    """So many more have left for front ends."""
    _heart.deliver(tokens)


def tick_with(loop: asyncio.AbstractEventLoop) -> None:
    """From now on this event loop's own ticks are looked at too."""
    _heart.write(_LOOP_AT, "<Q", time.monotonic_ns())
    loop.call_later(_heart.timing.loop_tick_seconds, tick_with, loop)


class ProcessState(Enum):
    """What the system says of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


class Verdict(Enum):
    ALIVE = "alive"
    SILENT = "silent"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Seen:
    """What a watcher knows of a process: the last beat, and since when its ticks have not moved, by its own clock."""

    since: float
    loop_since: float
    beat: Beat = Beat()

    @classmethod
    def at(cls, now: float, beat: Beat | None = None) -> Seen:
        return cls(now, now, beat or Beat())

    def then(self, beat: Beat, now: float) -> Seen:
        since = self.since if beat.tick == self.beat.tick else now
        loop_since = self.loop_since if beat.loop_tick == self.beat.loop_tick else now
        return replace(self, since=since, loop_since=loop_since, beat=beat)


def verdict(seen: Seen, state: ProcessState, now: float, timing: WatchTimes) -> Verdict:
    """Whether a process lives. One that is gone is not judged: whoever waits for it hears how it ended."""
    if not timing.silence_seconds or state is ProcessState.GONE:
        return Verdict.ALIVE
    if state is ProcessState.STOPPED and now - seen.since >= timing.stopped_seconds:
        return Verdict.STOPPED
    if now - seen.since > longest_silence(seen.beat.phase, timing):
        return Verdict.SILENT
    loop_counts = seen.beat.phase is Phase.SERVING and seen.beat.loop_tick
    if loop_counts and now - seen.loop_since > max(timing.silence_seconds, timing.loop_silence_seconds):
        return Verdict.SILENT
    return Verdict.ALIVE
