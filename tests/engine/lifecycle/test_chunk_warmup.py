"""What chunks take is known before the first request comes."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from chorus.engine.leader import Leader
from chorus.engine.lifecycle import warmup
from chorus.engine.scheduling.chunks import ChunkLimits
from chorus.messages.engine import Request, Sampling
from chorus.platform.accelerator import device
from chorus.rank.cache.rows import Rows
from tests.engine.conftest import MakeLeader

PLENTY = 1 << 40


@pytest.fixture
def leader(make_leader: MakeLeader) -> Leader:
    made, _ = make_leader()
    made.scheduler.limits = replace(made.scheduler.limits, prefill_chunk=None, chunks=ChunkLimits(32, 256))
    return made


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_larger_and_larger_chunks_are_tried(leader: Leader, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "backend", lambda: backend)
    monkeypatch.setattr(warmup, "TRIED_SECONDS", 1e9)  # a busy machine may take any time
    limits = leader.scheduler.limits
    warmup.warm_up(leader)
    assert warmup.measure_chunks(leader, PLENTY) == ChunkLimits(32, 256)
    assert [tokens for tokens, _ in leader.scheduler.costs.points] == [16, 64, 256]
    assert leader.scheduler.costs.decode > 0
    assert leader.scheduler.limits == limits
    assert leader.idle


def test_a_gpu_has_compiled_what_streams_may_ask_for(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of unequal lengths, and every way to draw, of one stream and of several."""
    monkeypatch.setattr(device, "backend", lambda: "cuda")
    written, submitted = Rows._written, leader.scheduler.submit
    unequal, asked = set(), []

    def write(rows: Rows, held: mx.array, new: mx.array, count: int) -> mx.array:
        unequal.add(not rows.lengths.equal)
        return written(rows, held, new, count)

    def submit(request: Request) -> None:
        asked.append(request)
        submitted(request)

    monkeypatch.setattr(Rows, "_written", write)
    monkeypatch.setattr(leader.scheduler, "submit", submit)
    warmup.warm_up(leader)
    assert True in unequal
    drawn = [request.sampling for request in asked]
    assert all(sampling in drawn for sampling in (Sampling(), *warmup.COMPILED))
    assert any(request.logprobs for request in asked)
    assert all(request.uncached for request in asked), "nobody's prompt begins with this"
    assert leader.idle


def test_what_would_take_too_long_is_not_tried(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "TRIED_SECONDS", 0.0)
    assert warmup.measure_chunks(leader, PLENTY) == ChunkLimits(32, 32)
    assert [tokens for tokens, _ in leader.scheduler.costs.points] == [16]


def test_what_memory_would_not_hold_is_not_tried(leader: Leader) -> None:
    assert warmup.measure_chunks(leader, 100) == ChunkLimits(32, 32)


def test_a_context_may_be_shorter_than_any_chunk(leader: Leader) -> None:
    leader.scheduler.limits = replace(leader.scheduler.limits, context=8)
    assert warmup.measure_chunks(leader, PLENTY).most == 32
    assert leader.idle
