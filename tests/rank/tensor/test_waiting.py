"""Ranks that divide every layer wait for each other on the CPU before any of them has work for its GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from chorus.messages.rank import Feed, Step
from chorus.platform.accelerator import device
from chorus.rank import parallel
from chorus.rank.parallel import TensorFollower, TensorLeader

STEP = Step(1, (), (Feed(1, (5,)),), decode=False, logits=False)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """On what each sum was to run, on what claims to be a Mac."""
    made: list[Any] = []

    def all_sum(array: mx.array, *, group: Any, stream: Any = None) -> mx.array:
        made.append(stream)
        return array

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    monkeypatch.setattr(device, "backend", lambda: "metal")
    monkeypatch.setattr(parallel, "Runner", lambda stage, disk: SimpleNamespace(run=lambda *_: made.append("forward")))
    return made


def test_the_leader_waits_before_its_first_forward_and_only_then(sums: list[Any]) -> None:
    leader = TensorLeader(SimpleNamespace(peers=object()))  # type: ignore[arg-type]
    leader.receive(Step(0, (), (), decode=False, logits=False))
    assert sums == []
    leader.receive(STEP)
    assert sums[:1] == [mx.cpu]
    seen = len(sums)
    leader.receive(STEP)
    assert len(sums) == seen
    assert leader.sum_seconds is not None


def test_a_follower_waits_before_its_first_forward_and_only_then(sums: list[Any]) -> None:
    follower = TensorFollower(SimpleNamespace(peers=object(), shard=SimpleNamespace(stage=None), disk=None, rank=1))  # type: ignore[arg-type]
    follower.run(STEP)
    follower.run(STEP)
    assert sums[0] == mx.cpu
    assert [place for place, what in enumerate(sums) if what == "forward"] == [len(sums) - 2, len(sums) - 1]
