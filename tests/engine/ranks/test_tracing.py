from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from chorus.engine.ranks import tracing


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
