"""Records what all ranks do for some steps, and how far their clocks are from the leader's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import grpc

from chorus.engine.ranks.followers import Follower
from chorus.errors import ChorusError
from chorus.messages.calls import why_failed
from chorus.messages.proto import engine_pb2 as wire
from chorus.telemetry.phases import MOST_SPANS, clock
from chorus.telemetry.trace.clocks import Offset, offset, over
from chorus.telemetry.trace.wire import MOST_SECONDS, recording_to_wire

log = logging.getLogger("chorus.engine")

LOOK_SECONDS = 0.1
PINGS = 16
"""Questions for a rank's time, before and after: more find a faster answer on a busy machine."""
SPARE_SECONDS = 10.0
"""A rank records so much longer than asked for, until it is told to end."""


_given_up: set[asyncio.Future[None]] = set()
"""Recordings that nobody wants any more, until their ranks have let go of them."""


class CannotTrace(ChorusError):
    """Nothing can be recorded now: says why."""


class Steps(Protocol):
    """The leader's steps, by their numbers."""

    sent_step: int
    finished_step: int


async def trace(
    followers: Sequence[Follower], leader: Steps, steps: int, seconds: float
) -> AsyncGenerator[wire.TraceReply, None]:
    """How many steps are over, now and then, until enough are or time is up; then what each rank has recorded."""
    if clock.held:
        raise CannotTrace("another trace is being recorded: try again when it is done")
    seconds = min(seconds, MOST_SECONDS - SPARE_SECONDS)
    log.info("recording %d steps for a trace, for at most %g s", steps, seconds)
    clock.record(seconds + SPARE_SECONDS)
    recorders = [_Recorder(follower, seconds + SPARE_SECONDS) for follower in followers]
    try:
        if _given_up:  # or a rank would let go of this recording in place of that one
            await asyncio.wait(_given_up)
        await asyncio.gather(*(asyncio.to_thread(recorder.begin) for recorder in recorders))
        # What is under way by now was described before anybody recorded it: only what is sent from here on counts.
        last, deadline = leader.sent_step, time.monotonic() + seconds
        while (done := max(0, leader.finished_step - last)) < steps and time.monotonic() < deadline:
            yield wire.TraceReply(steps_done=done)
            await asyncio.sleep(LOOK_SECONDS)
        yield wire.TraceReply(steps_done=done)
    except BaseException:
        # Whoever asked is gone. Nobody needs what was recorded, and nobody waits until all have heard it.
        for recorder in recorders:
            leaving = asyncio.get_running_loop().run_in_executor(None, recorder.give_up)
            _given_up.add(leaving)
            leaving.add_done_callback(_given_up.discard)
        raise
    finally:
        own = recording_to_wire(clock.take())
    yield wire.TraceReply(
        rank=wire.RankTrace(rank=0, host=socket.gethostname(), pid=os.getpid(), recording=own),
    )
    for found in await asyncio.gather(*(asyncio.to_thread(recorder.end) for recorder in recorders)):
        yield wire.TraceReply(rank=found)


class _Recorder:
    """One follower's part of a trace; each call may take a while."""

    def __init__(self, follower: Follower, seconds: float) -> None:
        self._follower = follower
        self._seconds = seconds
        self._before = Offset()
        self._missing = ""

    def begin(self) -> None:
        try:
            self._before = self._offset()
            self._follower.record(self._seconds, MOST_SPANS)
        except grpc.RpcError as error:
            self._missing = why_failed(error)

    def end(self) -> wire.RankTrace:
        rank = wire.RankTrace(
            rank=self._follower.rank,
            host=self._follower.hello.host,
            pid=self._follower.hello.pid,
            missing=self._missing,
        )
        if rank.missing:
            return rank
        try:
            rank.recording.CopyFrom(self._follower.take_recording())
            found = over(self._before, self._offset())
        except grpc.RpcError as error:
            rank.missing = why_failed(error)
            rank.ClearField("recording")
            return rank
        rank.clock_offset_seconds, rank.clock_error_seconds = found.seconds, found.error
        return rank

    def give_up(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self._follower.take_recording()

    def _offset(self) -> Offset:
        return offset([self._follower.ping() for _ in range(PINGS)])
