from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from chorus.engine.ranks import tracing
from chorus.engine.ranks.followers import Follower
from chorus.messages.proto import trace_pb2
from chorus.telemetry.trace.clocks import Ping
from chorus.telemetry.trace.wire import recording_to_wire

DEADLINE = 60.0


@dataclass
class Leader:
    sent_step: int
    finished_step: int


def test_steps_that_were_under_way_when_it_began_are_none_of_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LOOK_SECONDS", 0)
    leader = Leader(sent_step=5, finished_step=3)

    async def count() -> list[int]:
        counted = []
        async for reply in tracing.trace((), leader, steps=2, seconds=100):
            if not reply.HasField("rank"):
                counted.append(reply.steps_done)
                leader.sent_step += 1
                leader.finished_step += 1
        return counted

    # 3 to 5 were sent before, 6 and 7 are what is recorded.
    assert asyncio.run(count()) == [0, 0, 0, 1, 2]


class Rank:
    """A follower that is slow to let go of a recording that nobody wants."""

    rank = 1
    hello = SimpleNamespace(host="mini1", pid=7)

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.asked_to_let_go, self.lets_go = threading.Event(), threading.Event()

    def ping(self) -> Ping:
        return Ping(0.0, 0.0, 0.0)

    def record(self, seconds: float, most_spans: int) -> None:
        self.heard.append("record")

    def take_recording(self) -> trace_pb2.Recording:
        self.asked_to_let_go.set()
        assert self.lets_go.wait(DEADLINE)
        self.heard.append("take")
        return recording_to_wire(None)


def test_what_was_given_up_is_let_go_before_the_next_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LOOK_SECONDS", 0)
    rank = Rank()
    follower = cast(Follower, rank)

    async def both() -> int:
        first = tracing.trace((follower,), Leader(0, 0), steps=1, seconds=100)
        await anext(first)
        await first.aclose()
        assert await asyncio.to_thread(rank.asked_to_let_go.wait, DEADLINE)
        second = tracing.trace((follower,), Leader(0, 0), steps=0, seconds=100)
        begun = asyncio.create_task(anext(second))
        await asyncio.wait([begun], timeout=0.3)
        assert rank.heard == ["record"], "the next one waits"
        rank.lets_go.set()
        await begun
        return len([reply async for reply in second])

    assert asyncio.run(both()) == 2
    assert rank.heard == ["record", "take", "record", "take"]
