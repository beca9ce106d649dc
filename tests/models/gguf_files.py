"""Tiny GGUF files, written by the gguf package as converters do, together with the weights they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from tokenizers.pre_tokenizers import ByteLevel

Type = GGMLQuantizationType

# Where the float16 scales lie in a block of the types that the gguf package can decode but not make.
_SCALES_AT = {
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
}

CONTROL, NORMAL = 3, 1
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


@dataclass
class TinyModel:
    """What to write. `drop` and `extra` and `metadata` spoil the file on purpose."""

    arch: str = "llama"
    kind: GGMLQuantizationType = Type.F32
    embedding_kind: GGMLQuantizationType | None = None
    hidden: int = 256
    inner: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 0
    tied: bool = True
    biases: bool = False
    pre: str = "smollm"
    seed: int = 0
    drop: tuple[str, ...] = ()
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def vocabulary(self) -> tuple[list[str], list[str]]:
        letters = sorted(ByteLevel.alphabet())
        merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
        return [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in merges)], merges


def random_rows(kind: GGMLQuantizationType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Raw bytes of a tensor of that type: quantized noise, or blocks of noise with sane scales."""
    if kind not in _SCALES_AT:
        return quantize(rng.normal(0, 0.1, shape).astype(np.float32), kind)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    *outer, columns = shape
    blocks = rng.integers(0, 256, (*outer, columns // block, block_bytes), dtype=np.uint8)
    for at in _SCALES_AT[kind]:
        scale = rng.normal(0, 0.002, (*blocks.shape[:-1], 1)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(*outer, -1)


def as_converters_permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Halves of each head to pairs: what converters do to q and k of the llama family."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_tiny_gguf(path: Path, model: TinyModel) -> dict[str, np.ndarray]:
    """Writes the file and returns the decoded weights by Hugging Face name, q and k in Hugging Face order."""
    rng = np.random.default_rng(model.seed)
    tokens, merges = model.vocabulary
    writer = gguf.GGUFWriter(path, model.arch)
    weights: dict[str, np.ndarray] = {}

    def put(name: str, hf_name: str, shape: tuple[int, ...], heads: int = 0) -> None:
        kind = model.kind if len(shape) > 1 and "ffn_gate_inp" not in name else Type.F32
        if name == "token_embd.weight":
            kind = model.embedding_kind or kind
        rows = random_rows(kind, shape, rng)
        weights[hf_name] = dequantize(rows, kind)
        if name in model.drop:
            return
        if heads and model.arch == "llama":
            rows = as_converters_permute(rows, heads)
        writer.add_tensor(name, np.ascontiguousarray(rows), raw_dtype=None if kind in (Type.F32, Type.F16) else kind)

    _put_metadata(writer, model, tokens, merges)
    put("token_embd.weight", "model.embed_tokens.weight", (len(tokens), model.hidden))
    put("output_norm.weight", "model.norm.weight", (model.hidden,))
    if not model.tied:
        put("output.weight", "lm_head.weight", (len(tokens), model.hidden))
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for layer in range(model.layers):
        block, hf = f"blk.{layer}", f"model.layers.{layer}"
        put(f"{block}.attn_norm.weight", f"{hf}.input_layernorm.weight", (model.hidden,))
        put(f"{block}.ffn_norm.weight", f"{hf}.post_attention_layernorm.weight", (model.hidden,))
        put(f"{block}.attn_q.weight", f"{hf}.self_attn.q_proj.weight", (queries, model.hidden), model.heads)
        put(f"{block}.attn_k.weight", f"{hf}.self_attn.k_proj.weight", (keys, model.hidden), model.kv_heads)
        put(f"{block}.attn_v.weight", f"{hf}.self_attn.v_proj.weight", (keys, model.hidden))
        put(f"{block}.attn_output.weight", f"{hf}.self_attn.o_proj.weight", (model.hidden, queries))
        if model.biases:
            put(f"{block}.attn_q.bias", f"{hf}.self_attn.q_proj.bias", (queries,), model.heads)
            put(f"{block}.attn_k.bias", f"{hf}.self_attn.k_proj.bias", (keys,), model.kv_heads)
            put(f"{block}.attn_v.bias", f"{hf}.self_attn.v_proj.bias", (keys,))
            if model.arch == "llama":
                put(f"{block}.attn_output.bias", f"{hf}.self_attn.o_proj.bias", (model.hidden,))
        if model.arch.startswith("qwen3"):
            put(f"{block}.attn_q_norm.weight", f"{hf}.self_attn.q_norm.weight", (model.head_dim,))
            put(f"{block}.attn_k_norm.weight", f"{hf}.self_attn.k_norm.weight", (model.head_dim,))
        if model.experts:
            put(f"{block}.ffn_gate_inp.weight", f"{hf}.mlp.gate.weight", (model.experts, model.hidden))
            for part, shape in _expert_shapes(model).items():
                put(f"{block}.ffn_{part}_exps.weight", f"{hf}.mlp.switch_mlp.{part}_proj.weight", shape)
        else:
            put(f"{block}.ffn_gate.weight", f"{hf}.mlp.gate_proj.weight", (model.inner, model.hidden))
            put(f"{block}.ffn_up.weight", f"{hf}.mlp.up_proj.weight", (model.inner, model.hidden))
            put(f"{block}.ffn_down.weight", f"{hf}.mlp.down_proj.weight", (model.hidden, model.inner))
    for name, array in model.extra.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _expert_shapes(model: TinyModel) -> dict[str, tuple[int, ...]]:
    wide, narrow = model.inner, model.hidden
    return {
        "gate": (model.experts, wide, narrow),
        "up": (model.experts, wide, narrow),
        "down": (model.experts, narrow, wide),
    }


def _put_metadata(writer: gguf.GGUFWriter, model: TinyModel, tokens: list[str], merges: list[str]) -> None:
    fields: dict[str, Any] = {
        f"{model.arch}.block_count": model.layers,
        f"{model.arch}.context_length": 128,
        f"{model.arch}.embedding_length": model.hidden,
        f"{model.arch}.feed_forward_length": model.inner,
        f"{model.arch}.attention.head_count": model.heads,
        f"{model.arch}.attention.head_count_kv": model.kv_heads,
        f"{model.arch}.attention.key_length": model.head_dim,
        f"{model.arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{model.arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": model.pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    if model.experts:
        fields |= {
            f"{model.arch}.expert_count": model.experts,
            f"{model.arch}.expert_used_count": 2,
            f"{model.arch}.expert_feed_forward_length": model.inner,
        }
    for key, value in (fields | model.metadata).items():
        if value is not None:
            put_field(writer, key, value)


def put_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
