"""Parts from which the tiny configurations are made.

Widths are multiples of 64 so that any model can also be quantized, sliding windows are shorter than the prompts of
the tests, and layer counts let three uneven stages each hold more than one kind of layer.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

LAYERS = 7
# Just enough for a byte-level tokenizer with its special tokens.
VOCABULARY = 320
WINDOW = 6

DENSE: Config = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

# The same four experts under the three names that checkpoints use for them.
EXPERTS: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
LOCAL_EXPERTS: Config = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED_EXPERTS: Config = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 2,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}

# Multi-head latent attention: keys and values are kept as one low-rank latent, for all heads.
LATENT: Config = {
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
}

# Gated delta rule, as the Qwen and OLMo hybrids name its sizes.
DELTA: Config = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def config(model_type: str, *parts: Config, **overrides: Any) -> Config:
    """One configuration: later parts win over earlier ones, overrides over all."""
    merged: Config = {"model_type": model_type}
    for part in parts:
        merged |= part
    return merged | overrides


def pattern(period: str, layers: int, **meaning: Any) -> list[Any]:
    """One entry for each layer: the letters of `period`, repeated, each replaced by its meaning."""
    return [meaning[period[i % len(period)]] for i in range(layers)]


def windows(period: str = "ssf", layers: int = LAYERS) -> list[str]:
    """Layer types of a model that mixes sliding (s) and full (f) attention."""
    return pattern(period, layers, s="sliding_attention", f="full_attention")


def by_name(*configs: Config) -> dict[str, Config]:
    """Configurations keyed by the upstream module that builds them, which is mostly their model type."""
    return {entry["model_type"]: entry for entry in configs}
