"""Slices of every layer stored apart: what a rank loads from its folder is what it would cut from the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from chorus.models import LocalModel, tensor_index
from chorus.models.preshard.folder import Division, open_preshard
from chorus.planning.split import SplitError
from chorus.rank.load import LoadError, load_slices
from chorus.rank.tensor import divide
from chorus.rank.tensor.divide import Imagined, TensorPlan
from chorus.rank.tensor.preshard import write_sliced_preshard
from tests.support.tiny_model import write_tiny_model

# Plain, fused projections, experts, sinks, latents, norms over the full width, tied embeddings.
KINDS = ("llama", "phi3", "qwen3_moe", "gpt_oss", "deepseek_v3", "olmo2", "gemma3", "minimax")
QUANTIZED = {"bits": 4, "group_size": 32}


@pytest.fixture(autouse=True)
def split_small_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide, "VOCABULARY_PAYS_FROM", 0)


def tiny(folder: Path, name: str, **options: Any) -> LocalModel:
    return LocalModel(name, name, write_tiny_model(folder / "model", name, tokenizer=False, **options))


def loaded(path: Path, plan: TensorPlan) -> dict[str, mx.array]:
    group: Any = Imagined(plan.rank, len(plan.weights))
    return dict(tree_flatten(load_slices(path, plan, group, dtype="stored").stage.model.parameters()))


@pytest.mark.parametrize("quantize", [None, QUANTIZED], ids=["plain", "quantized"])
@pytest.mark.parametrize("name", KINDS)
def test_a_rank_loads_the_same_slices_as_from_the_model(
    name: str, quantize: dict[str, Any] | None, tmp_path: Path
) -> None:
    model = tiny(tmp_path, name, quantize=quantize, dtype="bfloat16")
    write_sliced_preshard(model, (1, 1), tmp_path / "parts")
    for rank in range(2):
        folder = open_preshard(tmp_path / "parts", rank, Division("tensor", (1, 1)))
        plan = TensorPlan(rank, (1, 1))
        expected, found = loaded(model.path, plan), loaded(folder, plan)
        assert set(found) == set(expected)
        assert all(found[key].dtype == expected[key].dtype for key in expected)
        assert all(mx.array_equal(found[key], expected[key]).item() for key in expected)


def test_unequal_weights_make_unequal_folders(tmp_path: Path) -> None:
    model = tiny(tmp_path, "llama", num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    parts = write_sliced_preshard(model, (6, 2), tmp_path / "parts")
    assert parts[0].nbytes > 2.5 * parts[1].nbytes
    assert sum(info.nbytes for info in tensor_index(parts[1].path).values()) == parts[1].nbytes
    assert open_preshard(tmp_path / "parts", 1, Division.of(None, (3, 1))) == parts[1].path


def test_slices_of_another_rank_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    model = tiny(tmp_path, "llama", num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    parts = write_sliced_preshard(model, (3, 1), tmp_path / "parts")
    with pytest.raises(LoadError, match="entries where this rank's slice has"):
        loaded(parts[1].path, TensorPlan(0, (3, 1)))


def test_an_architecture_that_only_upstream_divides_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"divided by mlx-lm itself.* serve it from the original folder"):
        write_sliced_preshard(tiny(tmp_path, "deepseek_v2"), (1, 1), tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
