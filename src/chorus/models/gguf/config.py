"""From GGUF metadata to the config.json and the tensor names of the Hugging Face form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chorus.models.errors import ModelError
from chorus.models.gguf.reader import GgufFile

ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Family:
    """What sets one GGUF architecture apart from the others."""

    model_type: str
    class_name: str
    permuted: bool = False
    """Rows of q and k are stored in pairs, for a rotation that takes neighbours; MLX takes halves."""
    attention_bias: bool = False
    head_norms: bool = False
    experts: bool = False


FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", permuted=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", attention_bias=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", head_norms=True),
    "qwen3moe": Family("qwen3_moe", "Qwen3MoeForCausalLM", head_norms=True, experts=True),
}

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


@dataclass(frozen=True)
class ModelShape:
    """The figures that say which tensors there are and how large each is."""

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    tied: bool
    biases: bool
    mlp_biases: bool
    experts: int


def family_of(gguf: GgufFile) -> Family:
    family = FAMILIES.get(gguf.architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(
            f"{gguf.path.name} is of architecture {gguf.architecture}, whose GGUF cannot be imported (supported: "
            f"{known}); use the model's Hugging Face folder instead."
        )
    if gguf.architecture == "llama" and gguf.metadata.get("llama.expert_count"):
        raise ModelError(
            f"{gguf.path.name} is a llama with experts, whose GGUF cannot be imported; "
            "use the model's Hugging Face folder instead."
        )
    return family


def model_shape(gguf: GgufFile) -> ModelShape:
    family, prefix = family_of(gguf), gguf.architecture
    hidden = int(gguf.require(f"{prefix}.embedding_length"))
    heads = _one_for_all_layers(gguf, f"{prefix}.attention.head_count")
    layers = int(gguf.require(f"{prefix}.block_count"))
    if heads < 1 or hidden < 1 or not 1 <= layers <= len(gguf.tensors):
        raise ModelError(
            f"{gguf.path.name} does not fit its own metadata: {layers} layers of width {hidden} with {heads} heads, "
            f"in {len(gguf.tensors)} tensors; download it again."
        )
    kv_key = f"{prefix}.attention.head_count_kv"
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{gguf.path.name} lacks tensor token_embd.weight; give the first part of the model's file.")
    inner = f"{prefix}.expert_feed_forward_length" if family.experts else f"{prefix}.feed_forward_length"
    return ModelShape(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_one_for_all_layers(gguf, kv_key) if kv_key in gguf.metadata else heads,
        head_dim=int(gguf.metadata.get(f"{prefix}.attention.key_length", hidden // heads)),
        inner=_one_for_all_layers(gguf, inner),
        vocabulary=embedding.shape[0],
        tied="output.weight" not in gguf.tensors,
        biases=family.attention_bias or "blk.0.attn_q.bias" in gguf.tensors,
        mlp_biases="blk.0.ffn_up.bias" in gguf.tensors,
        experts=int(gguf.require(f"{prefix}.expert_count")) if family.experts else 0,
    )


def model_config(gguf: GgufFile, shape: ModelShape, rope_factors: np.ndarray | None) -> dict[str, Any]:
    """The content of config.json, without the quantization and the token ids."""
    prefix = gguf.architecture
    theta = float(gguf.metadata.get(f"{prefix}.rope.freq_base", 10000.0))
    rotated = int(gguf.metadata.get(f"{prefix}.rope.dimension_count", shape.head_dim))
    if rotated != shape.head_dim or rotated % 2:
        raise ModelError(
            f"{gguf.path.name} rotates {rotated} of {shape.head_dim} head dimensions, which its architecture "
            f"{prefix} does not do elsewhere; use the model's Hugging Face folder instead."
        )
    config: dict[str, Any] = {
        "architectures": [shape.family.class_name],
        "model_type": shape.family.model_type,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": _short_float(gguf.require(f"{prefix}.attention.layer_norm_rms_epsilon")),
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": int(gguf.require(f"{prefix}.context_length")),
        "rope_theta": _short_float(theta),
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "float16",
    }
    if scaling := _rope_scaling(gguf, shape.head_dim, theta, rope_factors):
        config["rope_scaling"] = scaling
    if shape.family.permuted:
        config |= {"attention_bias": shape.biases, "mlp_bias": shape.mlp_biases}
    if shape.family.experts:
        config |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": int(gguf.require(f"{prefix}.expert_used_count")),
            "moe_intermediate_size": shape.inner,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return config


def tensor_names(gguf: GgufFile, shape: ModelShape) -> dict[str, str]:
    """GGUF name to Hugging Face name, after checking that every tensor is there, of its size, and none besides."""
    expected = dict(_expected(shape))
    found = {name: tensor.shape for name, tensor in gguf.tensors.items() if name != ROPE_FACTORS}
    if missing := sorted(expected.keys() - found.keys()):
        raise ModelError(
            f"{gguf.path.name} lacks tensor {missing[0]} ({len(missing)} of {len(expected)} are missing); "
            "download it again, or give the whole model in one file."
        )
    if unknown := sorted(found.keys() - expected.keys()):
        raise ModelError(
            f"{gguf.path.name} has tensor {unknown[0]}, which {gguf.architecture} does not know; "
            "use the model's Hugging Face folder instead."
        )
    for name, size in expected.items():
        if found[name] != size:
            raise ModelError(
                f"{gguf.path.name} does not fit its own metadata: tensor {name} is {list(found[name])}, "
                f"not {list(size)}; download it again."
            )
    return {name: _hf_name(name) for name in expected}


def unpermuted_heads(name: str, shape: ModelShape) -> int | None:
    """For a q or k tensor of the llama family, how many heads its rows are made of."""
    if shape.family.permuted and name.startswith("blk."):
        part = name.split(".")[2]
        return {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(part)
    return None


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows in pairs (0, half, 1, half + 1, …) back to halves (0, 1, …, half, half + 1, …), head by head."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def quantization_config(bits_of: Mapping[str, int], group_size: int) -> dict[str, Any] | None:
    """The usual bits for all, and the modules that differ by name. None where nothing is quantized."""
    if not bits_of:
        return None
    widths = list(bits_of.values())
    usual = max(sorted(set(widths)), key=widths.count)
    common = {"group_size": group_size, "bits": usual, "mode": "affine"}
    return common | {path: common | {"bits": bits} for path, bits in bits_of.items() if bits != usual}


def _expected(shape: ModelShape) -> Iterable[tuple[str, tuple[int, ...]]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, shape.hidden)
    yield "output_norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "output.weight", (shape.vocabulary, shape.hidden)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (shape.hidden,),
        "attn_q.weight": (queries, shape.hidden),
        "attn_k.weight": (keys, shape.hidden),
        "attn_v.weight": (keys, shape.hidden),
        "attn_output.weight": (shape.hidden, queries),
        "ffn_norm.weight": (shape.hidden,),
    }
    if shape.biases:
        block |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if shape.family.permuted:
            block["attn_output.bias"] = (shape.hidden,)
    if shape.family.head_norms:
        block |= {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}
    block |= _mlp(shape)
    for layer in range(shape.layers):
        for name, size in block.items():
            yield f"blk.{layer}.{name}", size


def _mlp(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    narrow, wide = shape.hidden, shape.inner
    if shape.family.experts:
        return {
            "ffn_gate_inp.weight": (shape.experts, narrow),
            "ffn_gate_exps.weight": (shape.experts, wide, narrow),
            "ffn_up_exps.weight": (shape.experts, wide, narrow),
            "ffn_down_exps.weight": (shape.experts, narrow, wide),
        }
    weights: dict[str, tuple[int, ...]] = {
        "ffn_gate.weight": (wide, narrow),
        "ffn_up.weight": (wide, narrow),
        "ffn_down.weight": (narrow, wide),
    }
    if shape.mlp_biases:
        weights |= {"ffn_gate.bias": (wide,), "ffn_up.bias": (wide,), "ffn_down.bias": (narrow,)}
    return weights


def _hf_name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"


def _one_for_all_layers(gguf: GgufFile, key: str) -> int:
    value = gguf.require(key)
    figures = set(value) if isinstance(value, list) else {value}
    if len(figures) != 1:
        raise ModelError(
            f"{gguf.path.name} has a different {key} from layer to layer, which {gguf.architecture} cannot express; "
            "use the model's Hugging Face folder instead."
        )
    return int(figures.pop())


def _rope_scaling(gguf: GgufFile, head_dim: int, theta: float, factors: np.ndarray | None) -> dict[str, Any] | None:
    if factors is not None:
        return _llama3_scaling(gguf, head_dim, theta, factors)
    prefix = f"{gguf.architecture}.rope.scaling"
    kind = gguf.metadata.get(f"{prefix}.type", "none")
    older_key = f"{gguf.architecture}.rope.scale_linear"
    factor = float(gguf.metadata.get(f"{prefix}.factor", gguf.metadata.get(older_key, 1)))
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = int(gguf.require(f"{prefix}.original_context_length"))
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise ModelError(
        f"{gguf.path.name} scales its positions by {kind}, which cannot be imported (supported: linear, yarn, llama3); "
        "use the model's Hugging Face folder instead."
    )


def _llama3_scaling(gguf: GgufFile, head_dim: int, theta: float, factors: np.ndarray) -> dict[str, Any]:
    """GGUF keeps llama 3's rule only as the factors it gives; take the rule back and check that it gives them."""
    factor = float(factors.max())
    if len(factors) != head_dim // 2 or not np.allclose(llama3_factors(head_dim, theta, factor), factors, rtol=1e-3):
        raise ModelError(
            f"{gguf.path.name} scales its positions by factors that are not llama 3's; "
            "use the model's Hugging Face folder instead."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def llama3_factors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """How much slower each frequency turns: not at all for short waves, `factor` for long ones, a blend between."""
    turns = _LLAMA3_CONTEXT / (2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim))
    blend = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0, 1.0)
    return 1 / ((1 - blend) / factor + blend)


def _short_float(value: float) -> float:
    """1e-05 rather than the 9.999999747378752e-06 that a float32 of it becomes."""
    return float(str(np.float32(value)))
