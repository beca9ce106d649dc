"""Which rule divides which architecture, keyed by the mlx-lm module (or third-party module) that defines the decoder."""

from __future__ import annotations

import mlx.nn as nn

from chorus.shard.tensor_rules.parts import Block, Heads, Inner, Rule

_registry: dict[str, Rule] = {}


def register(rule: Rule, *modules: str) -> None:
    """Use this for decoders defined in Python modules of these names."""
    for name in modules:
        _registry[name] = rule


def of_decoder(decoder: nn.Module) -> Rule | None:
    names = (base.__module__.rpartition(".")[2] for base in type(decoder).__mro__)
    return next((_registry[name] for name in names if name in _registry), None)


def registered() -> list[str]:
    return sorted(_registry)


_HEAD_NORMS = ("q_norm", "k_norm")
_LONG_NAMES = {"heads": "num_attention_heads", "groups": "num_key_value_heads"}
_ATTENTION = Block("self_attn", (Heads(),), whole=_HEAD_NORMS)
_MLP = Block("mlp", (Inner(),))
_EXPERTS = Block("mlp", (Inner(), Inner("switch_mlp"), Inner("shared_experts")), whole=("gate",))
_LATENT = Block(
    "self_attn",
    (
        Heads(
            queries=("q_proj", "q_b_proj"),
            shared=(),
            stacked=("embed_q", "unembed_out"),
            heads="num_heads",
            groups=None,
        ),
    ),
    whole=("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"),
)
_WIDE_NORMS = {"query_norms": ("q_norm",), "shared_norms": ("k_norm",)}

register(
    Rule((_ATTENTION, _MLP)),
    "llama",
    "ministral3",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "seed_oss",
    "smollm3",
)
register(Rule((_ATTENTION, _EXPERTS)), "qwen3_moe", "glm4_moe")
register(Rule((_LATENT, _EXPERTS)), "deepseek_v3")
register(Rule((Block("self_attn", (Heads(**_WIDE_NORMS),)), _MLP)), "olmo2")
register(Rule((Block("self_attn", (Heads(**_LONG_NAMES, **_WIDE_NORMS),)), _MLP)), "olmo3")
register(
    Rule(
        (
            Block("self_attn", (Heads(**_LONG_NAMES, **_WIDE_NORMS),)),
            Block("block_sparse_moe", (Inner("switch_mlp"),), whole=("gate", "e_score_correction_bias")),
        )
    ),
    "minimax",
)
register(
    Rule(
        (
            Block("self_attn", (Heads(**_LONG_NAMES, entries=("sinks",)),)),
            Block("mlp", (Inner("experts"),), whole=("router",)),
        )
    ),
    "gpt_oss",
)
register(
    Rule(
        (
            Block("self_attn", (Heads(fused=("qkv_proj",)),)),
            Block("mlp", (Inner(into=(), fused=("gate_up_proj",)),)),
        )
    ),
    "phi3",
)
register(
    Rule(
        (
            Block("self_attn", (Heads(heads="num_heads", groups="num_key_value_heads", output="dense"),)),
            Block("mlp", (Inner(into=("fc1",), out_of="fc2"),)),
        )
    ),
    "phi",
)
