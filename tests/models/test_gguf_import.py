from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_model

from chorus.models import ModelError, tensor_index
from chorus.models.gguf.config import llama3_factors, unpermute
from chorus.models.gguf.convert import convert_gguf
from chorus.models.gguf.quantized import is_exact, quantized_types
from tests.models.gguf_files import TinyModel, as_converters_permute, write_tiny_gguf

FLOATS = [Type.F32, Type.F16, Type.BF16]
SHAPES = {
    "llama": TinyModel("llama"),
    "llama, untied": TinyModel("llama", tied=False),
    "llama, biases": TinyModel("llama", biases=True),
    "qwen2": TinyModel("qwen2", biases=True, pre="qwen2"),
    "qwen3": TinyModel("qwen3", head_dim=32, pre="qwen2"),
    "qwen3moe": TinyModel("qwen3moe", experts=4, pre="qwen2"),
}


def convert(folder: Path, model: TinyModel) -> tuple[Path, dict[str, np.ndarray]]:
    weights = write_tiny_gguf(folder / "tiny.gguf", model)
    out = folder / "out"
    out.mkdir()
    convert_gguf(folder / "tiny.gguf", out)
    return out, weights


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def decoded(folder: Path) -> dict[str, np.ndarray]:
    """The imported weights as floats, by name, with each module's own bits."""
    stored = mx.load(str(folder / "model.safetensors"))
    quantization = config_of(folder).get("quantization", {})
    weights = {}
    for name, array in stored.items():
        path = name.removesuffix(".weight")
        if f"{path}.scales" in stored and name.endswith(".weight"):
            bits = quantization.get(path, quantization)["bits"]
            scales, biases = (stored[f"{path}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            weights[name] = np.array(mx.dequantize(array, scales, biases, group_size=32, bits=bits))
        elif not name.endswith((".scales", ".biases")):
            weights[name] = np.array(array.astype(mx.float32))
    return weights


@pytest.mark.parametrize("kind", [*FLOATS, *quantized_types()], ids=lambda kind: kind.name)
def test_every_type_comes_through(tmp_path: Path, kind: Type) -> None:
    out, weights = convert(tmp_path, TinyModel(kind=kind, layers=1))
    imported = decoded(out)
    assert imported.keys() == weights.keys()
    for name, exact in weights.items():
        if kind in FLOATS or is_exact(kind):
            assert np.array_equal(imported[name], exact), name
        else:
            assert np.abs(imported[name] - exact).max() <= 0.1 * np.abs(exact).max(), name


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda kind: kind.name)
def test_mlx_lm_computes_the_same_from_an_import_as_from_the_original(
    tmp_path: Path, model: TinyModel, kind: Type
) -> None:
    model = TinyModel(**(model.__dict__ | {"kind": kind}))
    out, weights = convert(tmp_path, model)
    imported, config = load_model(out)
    imported.set_dtype(mx.float32)
    assert config["eos_token_id"] == [2, 0]

    original = tmp_path / "original"
    original.mkdir()
    plain = {key: value for key, value in config_of(out).items() if key != "quantization"}
    (original / "config.json").write_text(json.dumps(plain))
    mx.save_safetensors(str(original / "model.safetensors"), {name: mx.array(array) for name, array in weights.items()})
    reference, _ = load_model(original)
    tokens = mx.array([[5, 9, 200, 31, 7]])
    assert np.allclose(np.array(imported(tokens)), np.array(reference(tokens)), atol=2e-4)


@given(heads=st.integers(1, 6), half=st.integers(1, 8), columns=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_unpermuting_undoes_what_converters_do(heads: int, half: int, columns: int) -> None:
    rows = np.arange(heads * half * 2 * columns).reshape(heads * half * 2, columns)
    assert np.array_equal(unpermute(as_converters_permute(rows, heads), heads), rows)


def test_the_config_says_what_the_metadata_said(tmp_path: Path) -> None:
    out, _ = convert(tmp_path, TinyModel("llama", Type.Q4_1, heads=8, kv_heads=2, head_dim=32))
    config = config_of(out)
    wanted = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "quantization": {"group_size": 32, "bits": 4, "mode": "affine"},
    }
    assert {key: config.get(key) for key in wanted} == wanted
    assert tensor_index(out)["model.layers.1.self_attn.k_proj.scales"].shape == (64, 8)


def test_modules_of_other_bits_are_named_in_the_config(tmp_path: Path) -> None:
    out, weights = convert(tmp_path, TinyModel(kind=Type.Q4_1, embedding_kind=Type.Q8_0))
    usual = {"group_size": 32, "bits": 4, "mode": "affine"}
    assert config_of(out)["quantization"] == usual | {"model.embed_tokens": usual | {"bits": 8}}
    assert np.array_equal(decoded(out)["model.embed_tokens.weight"], weights["model.embed_tokens.weight"])


def test_modules_kept_as_floats_stay_floats_beside_quantized_ones(tmp_path: Path) -> None:
    out, _ = convert(tmp_path, TinyModel(kind=Type.Q5_1, embedding_kind=Type.F16))
    assert config_of(out)["quantization"] == {"group_size": 32, "bits": 5, "mode": "affine"}
    tensors = tensor_index(out)
    assert tensors["model.embed_tokens.weight"].dtype == "F16"
    assert "model.embed_tokens.scales" not in tensors
    load_model(out)


def test_llama_3_position_scaling_is_recognised_from_its_factors(tmp_path: Path) -> None:
    factors = llama3_factors(64, 500000.0, 32.0).astype(np.float32)
    assert factors[0] == 1
    assert factors[-1] == 32
    model = TinyModel(extra={"rope_freqs.weight": factors}, metadata={"llama.rope.freq_base": 500000.0})
    out, _ = convert(tmp_path, model)
    assert config_of(out)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    load_model(out)


def test_factors_of_another_rule_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    with pytest.raises(ModelError, match="factors that are not llama 3's"):
        convert(tmp_path, TinyModel(extra={"rope_freqs.weight": factors}))


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        ({"type": "none", "factor": 4.0}, None),
    ],
)
def test_position_scaling_is_taken_over(tmp_path: Path, fields: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    metadata = {f"qwen2.rope.scaling.{key}": value for key, value in fields.items()}
    out, _ = convert(tmp_path, TinyModel("qwen2", biases=True, pre="qwen2", layers=1, metadata=metadata))
    assert config_of(out).get("rope_scaling") == scaling


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TinyModel(arch="mamba"), r"architecture mamba.*supported: llama, qwen2, qwen3"),
        (TinyModel(metadata={"llama.expert_count": 8}), "llama with experts"),
        (TinyModel(drop=("blk.1.ffn_up.weight",)), r"lacks tensor blk.1.ffn_up.weight \(1 of"),
        (TinyModel(drop=("token_embd.weight",)), "lacks tensor token_embd.weight"),
        (TinyModel(extra={"blk.0.surprise.weight": np.zeros(4, np.float32)}), "tensor blk.0.surprise.weight"),
        (TinyModel(metadata={"llama.feed_forward_length": 128}), r"ffn_gate.weight is \[256, 256\], not \[128, 256\]"),
        (TinyModel(metadata={"llama.block_count": 3}), "lacks tensor blk.2"),
        (TinyModel(metadata={"llama.block_count": 4_000_000_000}), "4000000000 layers"),
        (TinyModel(metadata={"llama.attention.head_count": 0}), "with 0 heads"),
        (TinyModel(metadata={"llama.attention.head_count": [4, 2]}), "from layer to layer"),
        (TinyModel(metadata={"llama.context_length": None}), "lacks the metadata llama.context_length"),
        (TinyModel(metadata={"llama.context_length": "many"}), "metadata of the wrong kind"),
        (TinyModel(metadata={"llama.rope.dimension_count": 32}), "rotates 32 of 64"),
        (TinyModel(metadata={"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}), "longrope"),
        (TinyModel(kind=Type.TQ1_0), r"token_embd.weight as TQ1_0.*supported: F32"),
        (
            TinyModel(metadata={"tokenizer.ggml.tokens": ["a"] * 999, "tokenizer.ggml.token_type": [1] * 999}),
            "999 tokens",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, model: TinyModel, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        convert(tmp_path, model)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_scale_that_is_no_number_is_found(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(kind=Type.Q8_0, layers=1))
    data = bytearray(file.read_bytes())
    data[-34:-32] = np.float16("nan").tobytes()
    file.write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"tensor blk.0.ffn_down.weight has a scale that is no number"):
        convert_gguf(file, tmp_path / "out")
