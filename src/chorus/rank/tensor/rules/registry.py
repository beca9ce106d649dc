"""Which rule divides which architecture.

Keyed, as in the pipeline's table, by the mlx-lm module (or third-party module) that defines the decoder.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.nn as nn

from chorus.rank.tensor.rules.parts import Block, Heads, Inner, Rule

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


_HEADS = Heads()
_LONG_NAMES = Heads(heads="num_attention_heads", groups="num_key_value_heads")
_LATENT = Heads(
    queries=("q_proj", "q_b_proj"), shared=(), stacked=("embed_q", "unembed_out"), heads="num_heads", groups=None
)


def _with_wide_norms(heads: Heads) -> Heads:
    return replace(heads, query_norms=("q_norm",), shared_norms=("k_norm",))


def _attention(heads: Heads, *whole: str) -> Block:
    return Block("self_attn", (heads,), whole)


_PLAIN = _attention(_HEADS, "q_norm", "k_norm")
_MLP = Block("mlp", (Inner(),))
_EXPERTS = Block("mlp", (Inner(), Inner("switch_mlp"), Inner("shared_experts")), whole=("gate",))

for _rule, _modules in (
    (
        Rule((_PLAIN, _MLP)),
        "llama ministral3 qwen2 qwen3 gemma gemma2 gemma3_text granite seed_oss smollm3",
    ),
    (Rule((_PLAIN, _EXPERTS)), "qwen3_moe glm4_moe"),
    (
        Rule((_attention(_LATENT, "q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"), _EXPERTS)),
        "deepseek_v3",
    ),
    (Rule((_attention(_with_wide_norms(_HEADS)), _MLP)), "olmo2"),
    (Rule((_attention(_with_wide_norms(_LONG_NAMES)), _MLP)), "olmo3"),
    (
        Rule(
            (
                _attention(_with_wide_norms(_LONG_NAMES)),
                Block("block_sparse_moe", (Inner("switch_mlp"),), whole=("gate", "e_score_correction_bias")),
            )
        ),
        "minimax",
    ),
    (
        Rule(
            (
                _attention(replace(_LONG_NAMES, entries=("sinks",))),
                Block("mlp", (Inner("experts"),), whole=("router",)),
            )
        ),
        "gpt_oss",
    ),
    (
        Rule(
            (
                _attention(replace(_HEADS, fused=("qkv_proj",))),
                Block("mlp", (Inner(into=(), fused=("gate_up_proj",)),)),
            )
        ),
        "phi3",
    ),
    (
        Rule(
            (
                _attention(Heads(heads="num_heads", groups="num_key_value_heads", output="dense")),
                Block("mlp", (Inner(into=("fc1",), out_of="fc2"),)),
            )
        ),
        "phi",
    ),
):
    register(_rule, *_modules.split())
