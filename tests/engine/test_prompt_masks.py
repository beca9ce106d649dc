"""Prompts are read with the attention kernel's own causal mask: an array in its place would halve the speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from chorus.engine.leader import Leader
from chorus.engine.prefix.index import PrefixIndex
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Request
from chorus.rank.load import LoadedShard, load_shard
from chorus.rank.runner import Runner
from tests.support.tiny_model import write_tiny_model

Asked = list[tuple[int, int, object]]
"""Of each attention: rows, tokens of each, and the mask."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    seen: Asked = []
    attention = mx.fast.scaled_dot_product_attention

    def noted(queries: mx.array, *arrays: mx.array, mask: Any = None, **options: Any) -> mx.array:
        seen.append((queries.shape[0], queries.shape[2], "array" if isinstance(mask, mx.array) else mask))
        return attention(queries, *arrays, mask=mask, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noted)
    return seen


def leader_of(shard: LoadedShard) -> Leader:
    runner = Runner(shard.stage)
    scheduler = Scheduler(SchedulerLimits(context=2048, prefill_chunk=64), prefixes=PrefixIndex(runner.keeping))
    return Leader(runner, scheduler, lambda news: None)


def read(leader: Leader, *prompts: tuple[int, ...]) -> None:
    for number, prompt in enumerate(prompts):
        assert leader.scheduler.submit(Request(f"{number}", prompt, 1)) is None
    while not leader.idle:
        leader.turn()


def tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(3 + (first + i * 7) % 200 for i in range(count))


def prompts_in(asked: Asked) -> set[tuple[int, int, object]]:
    return {(rows, count, mask) for rows, count, mask in asked if count > 1}


def test_a_prompt_of_several_chunks(shard: LoadedShard, asked: Asked) -> None:
    read(leader_of(shard), tokens(0, 150))
    assert prompts_in(asked) == {(1, 64, "causal"), (1, 22, "causal")}


def test_prompts_that_begin_together_and_go_on_apart(shard: LoadedShard, asked: Asked) -> None:
    read(leader_of(shard), *(tokens(i, 16 + 10 * i) for i in range(4)))
    assert {rows for rows, _, _ in prompts_in(asked)} == {4, 1}
    assert {mask for _, _, mask in prompts_in(asked)} == {"causal"}


def test_prompts_that_go_on_behind_what_is_stored_alone_and_together(shard: LoadedShard, asked: Asked) -> None:
    leader, system = leader_of(shard), tokens(0, 100)
    read(leader, (*system, *tokens(1, 5)))
    asked.clear()
    read(leader, (*system, *tokens(2, 20)))
    assert prompts_in(asked) == {(1, 20, "causal")}
    asked.clear()
    read(leader, *((*system, *tokens(3 + i, 12)) for i in range(3)))
    assert prompts_in(asked) == {(3, 12, "causal")}


def test_windows_need_an_array_only_where_a_chunk_reaches_beyond_them(tmp_path: Path, asked: Asked) -> None:
    shard = load_shard(write_tiny_model(tmp_path / "model", "olmo3", sliding_window=100), range)
    read(leader_of(shard), tokens(0, 64))
    assert prompts_in(asked) == {(1, 64, "causal")}
    read(leader_of(shard), tokens(0, 128))
    assert (1, 64, "array") in prompts_in(asked)
