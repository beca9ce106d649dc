"""Facts from names and shapes alone, against what upstream's models and caches really hold."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from chorus.models import ModelError, architectures
from chorus.models.tensors import TensorInfo
from chorus.planning.costs import Machine, Workload, stage_table
from chorus.planning.facts import ModelFacts, Weights, facts_of, read_facts
from chorus.platform.accelerator.dtype import DtypePolicy
from chorus.rank.cache.caches import size_bytes
from chorus.rank.load import load_shard
from chorus.rank.pipeline.stage import Stage
from chorus.rank.products.packing import pack
from chorus.rank.tensor.divide import rule_of
from tests.support.architectures import ARCHITECTURES, UNSUPPORTED
from tests.support.architectures.build import instantiate, single_cache
from tests.support.questions import ask
from tests.support.tiny_model import write_random_model, write_tiny_model

TEXT = [name for name in ARCHITECTURES if name not in UNSUPPORTED]
TOKENS = 1000
# Whose caches are counted otherwise, and why.
ODD_CACHES = {
    "deepseek_v41": "compresses keys by a rule of its own: counted as full keys",
    "iquestloopcoder": "the second pass keeps a window only: counted as full keys",
    "longcat_flash_ngram": "keeps two token ids besides",
}
NOT_SPLIT = {"iquestloopcoder", "nanbeige"}
STORED = DtypePolicy("stored", "", "")
PACKED = DtypePolicy("float32", "packed", "")
PACKS: dict[str, Any] = {"kernel_flops": 1e12, "kernel_bandwidth": 1e11}
"""A CPU that multiplies packed weights."""


def facts_of_tiny(name: str) -> tuple[Any, ModelFacts]:
    model = instantiate(ARCHITECTURES[name], 0, mx.float32)
    return model, facts_of(ARCHITECTURES[name], tensors_of(model), name)


def tensors_of(model: Any) -> dict[str, TensorInfo]:
    return {
        key: TensorInfo(
            Path("model.safetensors"),
            "U32" if "uint" in str(array.dtype) else "F32",
            tuple(array.shape),
            0,
            array.nbytes,
        )
        for key, array in tree_flatten(model.parameters())
    }


def kept_numbers(cache: Any) -> int:
    """How many numbers upstream's own cache would keep of a long sequence."""
    if hasattr(cache, "caches"):
        return sum(kept_numbers(part) for part in cache.caches)
    if type(cache).__name__ == "ArraysCache":
        return sum(array.size for array in cache.cache if array is not None)
    if cache.keys is None:
        return 0
    limit = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None) or TOKENS
    width = sum(array.shape[1] * array.shape[3] for array in (cache.keys, cache.values))
    return width * min(limit, TOKENS)


@pytest.mark.parametrize("name", TEXT)
def test_an_architecture_holds_what_its_facts_say(name: str) -> None:
    model, facts = facts_of_tiny(name)
    questions = []
    if name not in ODD_CACHES:
        questions.append(partial(the_cache_is_counted_as_upstream_keeps_it, model, facts))
    if name not in NOT_SPLIT:
        questions.append(partial(the_bytes_of_each_stage_are_predicted, name, facts))
    ask(*questions)


def the_cache_is_counted_as_upstream_keeps_it(model: Any, facts: ModelFacts) -> None:
    caches = single_cache(model)
    model(mx.array([[5, 17, 99, 3, 42, 60, 7]]), cache=caches)
    assert sum(layer.cache.numbers(TOKENS) for layer in facts.layers) == sum(map(kept_numbers, caches))


def the_bytes_of_each_stage_are_predicted(name: str, facts: ModelFacts) -> None:
    node = Machine("here", "metal", 1 << 40, 1e12, 1e11)
    table = stage_table(facts, node, Workload(context=256))
    layers = len(facts.layers)
    for first, last in ((0, 2), (2, 4), (4, layers)):
        stage = Stage(instantiate(ARCHITECTURES[name], 0, mx.float32), first, last)
        held = sum(array.nbytes for _, array in tree_flatten(stage.model.parameters()))
        assert table.weights[first, last] == pytest.approx(held, rel=0.05), (first, last)


@pytest.mark.parametrize(
    ("quantize", "dtype", "dequantized"),
    [
        (None, "stored", False),
        (None, "bfloat16", False),
        ({"bits": 4, "group_size": 32}, "stored", False),
        ({"bits": 4, "group_size": 32}, "float32", True),
        ({"bits": 8, "group_size": 64}, "bfloat16", True),
    ],
)
def test_bytes_after_the_dtype_policy_are_those_that_are_loaded(
    quantize: dict[str, int] | None, dtype: str, dequantized: bool, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model", "qwen3", quantize=quantize, dtype="bfloat16", tokenizer=False)
    facts = read_facts(folder)
    assert facts.quantized == (quantize is not None)
    node = Machine("here", "cpu", 1 << 40, 1e12, 1e11)
    table = stage_table(facts, node, Workload(context=256, dtype=dtype))
    for first, last in ((0, 3), (3, 7), (0, 7)):
        loaded = load_shard(folder, lambda _, run=range(first, last): run, dtype=dtype)
        assert table.policy(first, last).dequantize == dequantized == loaded.policy.dequantize
        assert table.weights[first, last] == pytest.approx(loaded.weight_bytes, rel=0.01)


WIDTHS = [*((bits, group, "affine") for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128))]
OTHER_WAYS = [(4, 32, "mxfp4"), (4, 16, "nvfp4"), (8, 32, "mxfp8")]


@pytest.mark.parametrize(("bits", "group", "mode"), [*WIDTHS, *OTHER_WAYS])
def test_a_matrix_is_counted_as_the_kernels_hold_it(bits: int, group: int, mode: str) -> None:
    rows, columns = 24, 256
    parts = dict(
        zip(
            ("weight", "scales", "biases"),
            mx.quantize(mx.random.normal((rows, columns)), group_size=group, bits=bits, mode=mode),
            strict=False,
        )
    )
    plain = {name: np.array(part) for name, part in parts.items()}
    held = pack(plain["weight"], plain["scales"], plain.get("biases"), bits=bits, block=group, mode=mode)
    layer = {f"model.layers.0.mlp.up_proj.{name}": part for name, part in parts.items()}
    tensors = {
        name: TensorInfo(Path(), "F32" if part.dtype == mx.float32 else "U32", tuple(part.shape), 0, part.nbytes)
        for name, part in layer.items()
    }
    # What is said of one module goes over what is said of all.
    own = {"group_size": group, "bits": bits, "mode": mode}
    config = {"num_hidden_layers": 1, "quantization": {"group_size": 64, "bits": 4, "model.layers.0.mlp.up_proj": own}}
    weights = facts_of(config, tensors, "one").layers[0].weights
    assert weights.bytes_under(PACKED) == (held.nbytes if held else rows * columns * 4)


@pytest.mark.parametrize(
    ("quantize", "pack_to", "changes"),
    [
        ({"bits": 4, "group_size": 32}, None, {"tie_word_embeddings": True}),
        ({"bits": 6, "group_size": 64}, None, {"tie_word_embeddings": False}),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, None, {"tie_word_embeddings": True}),
        ({"bits": 8, "group_size": 32, "mode": "mxfp8"}, None, {"tie_word_embeddings": False}),
        (None, 8, {"tie_word_embeddings": True}),
        (None, 4, {"tie_word_embeddings": False}),
    ],
)
def test_packed_bytes_are_those_that_a_rank_loads(
    quantize: dict[str, Any] | None, pack_to: int | None, changes: dict[str, Any], tmp_path: Path
) -> None:
    wide = {"hidden_size": 128, "intermediate_size": 256, **changes}
    folder = write_tiny_model(tmp_path / "model", "qwen3", quantize=quantize, dtype="bfloat16", tokenizer=False, **wide)
    work = Workload(context=256, cpu_products="packed", pack=pack_to)
    table = stage_table(read_facts(folder), Machine("here", "cpu", 1 << 40, 1e12, 1e11, **PACKS), work)
    for first, last in ((0, 3), (3, 7), (0, 7)):
        policy = table.policy(first, last)
        assert policy.packed
        loaded = load_shard(folder, lambda _, run=range(first, last): run, policy=policy.name)
        assert loaded.policy.form == policy.form
        # The final norm is counted for every stage.
        assert table.weights[first, last] == pytest.approx(loaded.weight_bytes, abs=4 * 128), (first, last)


def test_experts_are_counted_as_the_kernels_hold_them(tmp_path: Path) -> None:
    quantize = {"bits": 4, "group_size": 32}
    folder = write_tiny_model(tmp_path / "model", "qwen3_moe", quantize=quantize, dtype="bfloat16", tokenizer=False)
    table = stage_table(read_facts(folder), Machine("here", "cpu", 1 << 40, 1e12, 1e11, **PACKS), Workload(context=256))
    assert table.weights[0, -1] == pytest.approx(load_shard(folder, range).weight_bytes, rel=0.03)


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_keys_and_values_are_counted_as_they_are_kept(bits: int, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "qwen3", tokenizer=False, head_dim=64)
    work = Workload(context=256, dtype="float32", kv_bits=bits)
    table = stage_table(read_facts(folder), Machine("here", "cpu", 1 << 40, 1e12, 1e11), work)
    stage = load_shard(folder, range, dtype="float32", kv_bits=bits).stage
    cache = stage.new_cache()
    stage.forward(mx.array([[5, 17, 99]]), cache)
    assert table.cache[0, -1] == size_bytes(cache)


def test_mixed_bits_are_counted_per_tensor(tmp_path: Path) -> None:
    four = read_facts(
        write_tiny_model(tmp_path / "four", "llama", quantize={"bits": 4, "group_size": 32}, tokenizer=False)
    )
    eight = read_facts(
        write_tiny_model(tmp_path / "eight", "llama", quantize={"bits": 8, "group_size": 32}, tokenizer=False)
    )
    assert four.total.elements == eight.total.elements
    assert eight.total.packed == 2 * four.total.packed


def test_only_the_routed_part_of_experts_counts_as_read() -> None:
    _, facts = facts_of_tiny("qwen3_moe")
    sparse, dense = facts.layers[1], facts.layers[0]
    assert (sparse.expert_count, sparse.experts_per_token) == (4, 2)
    assert sparse.active_elements == sparse.weights.elements - sparse.experts.elements / 2
    assert sparse.read_share(1) == 0.5
    assert sparse.read_share(64) == pytest.approx(1)
    assert dense.experts == Weights()


def test_vision_parts_and_layers_beyond_the_declared_are_not_counted() -> None:
    def tensor(*shape: int) -> TensorInfo:
        count = 1
        for size in shape:
            count *= size
        return TensorInfo(Path("f"), "BF16", shape, 0, 2 * count)

    config = {"model_type": "kimi_vl", "text_config": {"num_hidden_layers": 1, "hidden_size": 4, "vocab_size": 8}}
    tensors = {
        "vision_tower.encoder.layers.0.mlp.weight": tensor(1000, 1000),
        "language_model.model.embed_tokens.weight": tensor(8, 4),
        "language_model.model.layers.0.mlp.weight": tensor(4, 4),
        "language_model.model.layers.1.mtp_block.weight": tensor(4, 4),
        "language_model.model.norm.weight": tensor(4),
        "language_model.lm_head.weight": tensor(8, 4),
    }
    facts = facts_of(config, tensors, "model")
    assert len(facts.layers) == 1
    assert facts.total.elements == 32 + 16 + 4 + 32
    assert not facts.tied


def test_a_model_without_layers_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"strange has no tensors named like layers"):
        facts_of({"model_type": "x"}, {"weight": TensorInfo(Path("f"), "F32", (1,), 0, 4)}, "strange")


# What the planner asks for and programs write as null where they mean nothing.
NULLS = (
    *("max_position_embeddings", "head_dim", "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "sliding_window", "attention_window_size", "layer_types", "hybrid_override_pattern"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts_per_tok", "num_kv_shared_layers", "num_loops"),
    *("attn_config", "ffn_config", "linear_attn_config", "quantization", "quantization_config", "tie_word_embeddings"),
)


@pytest.mark.parametrize("name", TEXT)
def test_a_null_says_as_much_as_a_missing_key(name: str) -> None:
    model, facts = facts_of_tiny(name)
    config = ARCHITECTURES[name]
    inner = config.get("text_config")
    nulls = dict.fromkeys(key for key in NULLS if key not in config and key not in (inner or {}))
    beside = facts_of(config | nulls | ({} if inner else {"text_config": None}), tensors_of(model), name)
    assert beside == facts
    if inner:
        assert facts_of(config | {"text_config": inner | nulls}, tensors_of(model), name) == facts


def test_a_context_that_no_configuration_states_is_whatever_is_asked_for() -> None:
    model, facts = facts_of_tiny("llama")
    assert facts.longest(100_000) == facts.context
    config = ARCHITECTURES["llama"] | {"max_position_embeddings": None}
    unstated = facts_of(config, tensors_of(model), "llama")
    assert (unstated.context, unstated.longest(100_000)) == (2048, 100_000)


@pytest.mark.parametrize(
    "odd",
    [{"hidden_size": "big"}, {"quantization": 7}, {"num_attention_heads": {"a": 1}}, {"num_key_value_heads": ["a", 1]}],
    ids=str,
)
def test_a_value_of_another_kind_is_one_line_that_names_the_model(odd: dict[str, Any]) -> None:
    folder = {"layers.0.q_proj.weight": TensorInfo(Path("f"), "U32", (1,), 0, 4)}
    scales = {"layers.0.q_proj.scales": TensorInfo(Path("f"), "F32", (1,), 4, 8)}
    with pytest.raises(ModelError, match=r"config\.json of strange has a value of another kind"):
        facts_of({"model_type": "llama"} | odd, folder | scales, "strange")


def test_facts_need_headers_only(tmp_path: Path) -> None:
    """The weights may be anything: only their places in the file are looked at."""
    folder = write_random_model(tmp_path / "model", ARCHITECTURES["llama"])
    before = read_facts(folder)
    file = folder / "model.safetensors"
    length = int.from_bytes(file.read_bytes()[:8], "little")
    with file.open("r+b") as stream:
        stream.seek(8 + length)
        stream.write(b"\xff" * (file.stat().st_size - 8 - length))
    assert read_facts(folder) == before
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == len(before.layers)


@pytest.mark.parametrize("name", [name for name in architectures.named() if architectures.tensor_rule(name)])
def test_the_rule_by_which_the_planner_offers_tensor_parallel_is_the_one_that_ranks_use(name: str) -> None:
    config = {**ARCHITECTURES.get(name, ARCHITECTURES["llama"]), "model_type": name}
    assert rule_of(instantiate(config, 0, mx.float32)) is architectures.tensor_rule(name)
