"""Decoders with multi-head latent attention, with and without an index that picks the keys."""

from __future__ import annotations

from .dense import MINICPM
from .shared import DENSE, LATENT, LAYERS, ROUTED_EXPERTS, VOCABULARY, WINDOW, Config, by_name, config

INDEX: Config = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 5}
DEEPSEEK_V3: Config = config("deepseek_v3", DENSE, LATENT, ROUTED_EXPERTS)
MISTRAL4: Config = config(
    "mistral4",
    DENSE,
    LATENT,
    ROUTED_EXPERTS,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 8,
    },
)
YARN: Config = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
LONG_ROPE: Config = {
    "type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}
LONGCAT: Config = {
    **LATENT,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "expert_ffn_hidden_size": 64,
    "moe_topk": 2,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "zero_expert_type": "identity",
    "num_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "attention_bias": False,
    "attention_method": "MLA",
}

CONFIGS = by_name(
    config("deepseek_v2", DENSE, LATENT, ROUTED_EXPERTS, topk_method="greedy", rope_scaling=YARN),
    DEEPSEEK_V3,
    config("deepseek_v32", DENSE, LATENT, ROUTED_EXPERTS, INDEX),
    config(
        "deepseek_v41",
        DENSE,
        INDEX,
        num_hidden_layers=8,
        q_lora_rank=64,
        qk_rope_head_dim=16,
        head_dim=64,
        o_groups=2,
        o_lora_rank=32,
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        # Windows only, then compressed keys made in layers 2 and 5 and picked in 2, 4 and 5, read by the others.
        compress_ratios=[0, 0, 2, 2, 2, 2, 2, 2],
        kv_source_layer_ids=[2, 5],
        index_source_layer_ids=[2, 4, 5],
        candidate_source_layer_id=2,
        candidate_topk_blocks=3,
        candidate_block_size=2,
        index_topk=3,
        hc_mult=2,
        hc_sinkhorn_iters=4,
        rms_norm_eps=1e-6,
    ),
    config("glm4_moe_lite", DENSE, LATENT, ROUTED_EXPERTS),
    config(
        "glm_moe_dsa",
        DENSE,
        LATENT,
        ROUTED_EXPERTS,
        INDEX,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    config("longcat_flash", LONGCAT),
    config("longcat_flash_ngram", LONGCAT, ngram_vocab_size_ratio=3, emb_neighbor_num=3, emb_split_num=2),
    config("minicpm3", DENSE, LATENT, MINICPM, rope_scaling=LONG_ROPE),
    MISTRAL4,
    config("youtu_llm", DENSE, LATENT),
)
