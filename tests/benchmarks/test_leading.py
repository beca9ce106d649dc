from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.leading import DEVICE, GRAPH, PARTS, REST, SAMPLING, Bare, Clock, Leading, unequal_prompts
from chorus.rank.load import LoadedShard, load_shard
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> LoadedShard:
    folder: Path = tmp_path_factory.mktemp("leading")
    return load_shard(write_tiny_model(folder, "llama", vocab_size=4096), range)


def test_time_within_a_part_that_runs_in_another_counts_once() -> None:
    ticks = iter([0.0, 1.0, 4.0, 9.0])
    clock = Clock(lambda: next(ticks))
    with clock.part("outer"), clock.part("inner"):
        pass
    assert clock.seconds == {"outer": 1.0 + 5.0, "inner": 3.0}


def test_no_two_rows_are_equally_long() -> None:
    lengths = [len(prompt) for prompt in unequal_prompts(8, 100)]
    assert len(set(lengths)) == 8
    assert min(lengths) < 100 < max(lengths)


def test_a_leaders_step_has_all_the_parts_that_are_looked_at_and_is_as_before_afterwards(shard: LoadedShard) -> None:
    leading = Leading(shard.stage, unequal_prompts(4, 12), 40, "greedy")
    before = leading.leader.finished_step
    parts = leading.parts(5)
    assert set(parts) == set(PARTS)
    assert all(parts[part] > 0 for part in (DEVICE, GRAPH, SAMPLING, REST))
    assert leading.leader.finished_step == before + 5
    assert "_sample" not in vars(leading.leader)
    assert "forward" not in vars(shard.stage)
    leading.steps(2)


def test_a_bare_loop_draws_what_the_leader_draws(shard: LoadedShard) -> None:
    """It multiplies the same, or its time would say nothing: the row's token is the leader's next one."""
    import mlx.core as mx
    import numpy as np

    prompts = unequal_prompts(3, 10)
    bare = Bare(shard.stage, prompts)
    fed = np.array(bare._tokens).tolist()
    bare.steps(1)
    for row, prompt in enumerate(prompts):
        tokens = mx.array([[*prompt, 1000, fed[row]]])
        logits = shard.stage.forward(tokens, shard.stage.new_cache())[0]
        assert int(mx.argmax(logits[0])) == int(np.array(bare._tokens)[row])
