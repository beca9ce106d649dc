from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from chorus.rank.pipeline.stage import Stage, layer_count
from chorus.rank.tensor import divide
from chorus.rank.tensor.divide import Imagined, TensorPlan, shard_model
from tests.support.architectures import ARCHITECTURES, build


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the ranks would have met; nobody else is there."""
    made = {"all_sum": 0, "all_gather": 0}

    def all_sum(x: mx.array, **_: Any) -> mx.array:
        made["all_sum"] += 1
        return x

    def all_gather(x: mx.array, *, group: Imagined) -> mx.array:
        made["all_gather"] += 1
        return mx.concatenate([x] * group.size())

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    monkeypatch.setattr(mx.distributed, "all_gather", all_gather)
    return made


def _stage(name: str, rank: int = 0) -> Stage:
    model = build(name)
    shard_model(model, ARCHITECTURES[name], TensorPlan(rank, (1, 1)), Imagined(rank, 2))
    return Stage(model, 0, layer_count(model))


@pytest.mark.parametrize(
    ("name", "a_layer"), [("llama", 2), ("phi", 2), ("qwen3_moe", 2), ("deepseek_v3", 2), ("gpt_oss", 2), ("olmo2", 4)]
)
def test_ranks_meet_twice_a_layer_and_once_more_for_each_wide_norm(
    counts: dict[str, int], name: str, a_layer: int
) -> None:
    stage = _stage(name)
    mx.eval(stage.forward(mx.array([[1, 2, 3]]), stage.new_cache()))
    assert counts == {"all_sum": a_layer * stage.layers, "all_gather": 0}


def test_a_divided_vocabulary_meets_once_at_each_end(counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide, "VOCABULARY_PAYS_FROM", 0)
    stage = _stage("qwen2")
    (logits,) = stage.forward(mx.array([[1, 2, 3]]), stage.new_cache())
    assert logits.shape == (1, 320)
    assert counts == {"all_sum": 2 * stage.layers + 1, "all_gather": 1}


def test_a_chunk_whose_logits_nobody_wants_gathers_none(
    counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divide, "VOCABULARY_PAYS_FROM", 0)
    stage = _stage("qwen2")
    stage.forward(mx.array([[1, 2, 3]]), stage.new_cache(), logits=False)
    assert counts["all_gather"] == 0


def test_output_biases_stay_on_one_rank_only() -> None:
    assert "bias" in _stage("phi", rank=0).model.layers[0].mlp.fc2
    assert "bias" not in _stage("phi", rank=1).model.layers[0].mlp.fc2
    assert "bias" not in _stage("gpt_oss", rank=1).model.layers[0].mlp.experts.down_proj


def test_a_divided_model_looks_like_a_single_stage() -> None:
    stage = _stage("llama")
    assert (stage.first, stage.last, stage.layers) == (0, 7, 7)
    assert stage.is_first
    assert stage.is_last
    assert stage.batches
