from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from chorus.models.tensors import tensor_index
from chorus.rank.tensor import divide
from chorus.rank.tensor.cuts import Cut, take
from chorus.rank.tensor.divide import Imagined, TensorPlan, shard_model
from chorus.rank.tensor.stored_slices import SliceReader, stored_parameters
from chorus.rank.upstream.weights import load_lazily
from tests.support.architectures import ARCHITECTURES, build, build_config

QUANTIZATION = {"group_size": 64, "bits": 4}
WIDE: dict[str, Any] = {
    **ARCHITECTURES["llama"],
    "hidden_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 1024,
}

Names = Callable[[dict[str, mx.array]], dict[str, mx.array]]


@pytest.fixture(autouse=True)
def split_small_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide, "VOCABULARY_PAYS_FROM", 0)


def _save(model: nn.Module, config: dict[str, Any], folder: Path, stored: Names = lambda weights: weights) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), stored(dict(tree_flatten(model.parameters()))))
    (folder / "config.json").write_text(json.dumps(config))


def _divided(folder: Path, plan: TensorPlan, *, from_disk: bool) -> tuple[dict[str, mx.array], int]:
    lazy = load_lazily(folder)
    reader = SliceReader(stored_parameters(folder, lazy.config) if from_disk else {})
    group = Imagined(plan.rank, len(plan.weights))
    shard_model(lazy.model, lazy.config, plan, group, read=reader)
    return dict(tree_flatten(lazy.model.parameters())), reader.bytes_read


def _same(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and mx.array_equal(one[name], other[name]).item() for name in one
    )


@pytest.mark.parametrize("name", ["llama", "phi3", "deepseek_v3", "gpt_oss", "qwen3_moe", "gemma3"])
@pytest.mark.parametrize("rank", [0, 1])
def test_slices_from_disk_are_the_slices_of_the_loaded_model(name: str, rank: int, tmp_path: Path) -> None:
    model = build(name, dtype=mx.bfloat16)
    nn.quantize(model, **QUANTIZATION)
    _save(model, {**ARCHITECTURES[name], "quantization": QUANTIZATION}, tmp_path)
    plan = TensorPlan(rank, (1, 1))
    from_disk, count = _divided(tmp_path, plan, from_disk=True)
    in_memory, nothing = _divided(tmp_path, plan, from_disk=False)
    assert _same(from_disk, in_memory)
    assert count > 0
    assert nothing == 0


@pytest.mark.parametrize("quantized", [True, False])
def test_a_rank_reads_little_more_than_its_share(quantized: bool, tmp_path: Path) -> None:
    model = build_config(WIDE, dtype=mx.bfloat16)
    config = dict(WIDE)
    if quantized:
        nn.quantize(model, **QUANTIZATION)
        config["quantization"] = QUANTIZATION
    _save(model, config, tmp_path)
    total = sum(info.nbytes for info in tensor_index(tmp_path).values())
    for rank, share in enumerate((3 / 4, 1 / 4)):
        parameters, read = _divided(tmp_path, TensorPlan(rank, (3, 1)), from_disk=True)
        kept = sum(array.nbytes for array in parameters.values())
        assert kept == pytest.approx(total * share, rel=0.02)
        assert read <= kept + 0.1 * total


def test_a_parameter_that_the_architecture_computes_is_cut_from_what_it_computed(tmp_path: Path) -> None:
    """Checkpoints keep experts apart; qwen3_moe stacks them when it loads them."""

    def unstacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        stored = {}
        for name, array in weights.items():
            if ".switch_mlp." in name:
                for expert in range(array.shape[0]):
                    stored[name.replace("switch_mlp", f"experts.{expert}")] = array[expert]
            else:
                stored[name] = array
        return stored

    model = build("qwen3_moe")
    _save(model, ARCHITECTURES["qwen3_moe"], tmp_path, unstacked)
    sources = stored_parameters(tmp_path, ARCHITECTURES["qwen3_moe"])
    assert "model.layers.0.self_attn.q_proj.weight" in sources
    assert not any("switch_mlp" in path for path in sources)
    plan = TensorPlan(1, (1, 1))
    shard_model(model, ARCHITECTURES["qwen3_moe"], plan, Imagined(1, 2))
    assert _same(_divided(tmp_path, plan, from_disk=True)[0], dict(tree_flatten(model.parameters())))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16, mx.uint32, mx.uint8])
@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((6, 8), Cut(0, ((1, 4),))),
        ((6, 8), Cut(1, ((2, 8),))),
        ((3, 4000, 8), Cut(1, ((0, 10), (3000, 3900)))),
        ((3, 5, 9000), Cut(2, ((17, 8001),))),
        ((12,), Cut(0, ((3, 4), (7, 12)))),
    ],
)
def test_any_cut_of_any_array_is_read_as_it_is_taken(
    shape: tuple[int, ...], cut: Cut, dtype: mx.Dtype, tmp_path: Path
) -> None:
    array = (mx.random.uniform(shape=shape) * 100).astype(dtype)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"ahead": mx.zeros((3,)), "wanted": array})
    reader = SliceReader(tensor_index(tmp_path))
    found = reader("wanted", array, cut)
    assert found.dtype == dtype
    assert mx.array_equal(found, take(array, cut)).item()


def test_a_file_that_lost_its_end_is_an_error_not_a_wrong_slice(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    array = mx.random.uniform(shape=(64, 64))
    mx.save_safetensors(str(file), {"wanted": array})
    reader = SliceReader(tensor_index(tmp_path))
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 4096)
    with pytest.raises(OSError, match="too early"):
        reader("wanted", array, Cut(0, ((32, 64),)))
