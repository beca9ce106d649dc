"""Models that wrap a text decoder, mostly beside a vision tower that mlx-lm leaves out."""

from __future__ import annotations

from .experts import QWEN3_MOE
from .latent import DEEPSEEK_V3
from .recurrent import KIMI_LAYERS, LFM2
from .shared import (
    DELTA,
    DENSE,
    EXPERTS,
    LATENT,
    LOCAL_EXPERTS,
    VOCABULARY,
    WINDOW,
    Config,
    by_name,
    config,
    windows,
)
from .sliding import GEMMA3_TEXT, MINISTRAL3

QWEN3_5_TEXT: Config = config(
    "qwen3_5_text",
    DENSE,
    DELTA,
    num_hidden_layers=8,
    full_attention_interval=3,
    rope_parameters={"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
)
# Widths of 128 and 512 are the least that a packed layer without and with a rotation can have.
HADAMARD_TEXT: Config = config("qwen3_5_text", QWEN3_5_TEXT, hidden_size=128, intermediate_size=512)
HADAMARD_MODULES = [
    {"path": "model.embed_tokens", "embedding": True, "dtype": "float16", "block": 0},
    *(
        {"path": f"model.layers.{layer}.mlp.{name}", "embedding": False, "dtype": "float16", "block": block}
        for layer in range(8)
        for name, block in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 512))
    ),
]

CONFIGS = by_name(
    config("gemma3", text_config=GEMMA3_TEXT, vocab_size=VOCABULARY),
    config(
        "gemma4",
        vocab_size=VOCABULARY,
        text_config=config(
            "gemma4_text",
            DENSE,
            layer_types=windows(),
            sliding_window=WINDOW,
            global_head_dim=32,
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            num_kv_shared_layers=0,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=64,
        ),
    ),
    config("kimi_k25", text_config=DEEPSEEK_V3),
    config(
        "kimi_k3",
        text_config=config(
            "kimi_linear",
            DENSE,
            LATENT,
            EXPERTS,
            num_hidden_layers=8,
            linear_attn_config=KIMI_LAYERS,
            attn_res_block_size=3,
            mla_use_output_gate=True,
            num_experts_per_token=2,
            num_shared_experts=1,
            routed_scaling_factor=1.5,
            first_k_dense_replace=1,
            routed_expert_hidden_size=64,
            latent_moe_use_norm=True,
        ),
    ),
    config("kimi_vl", text_config=DEEPSEEK_V3),
    config("lfm2-vl", text_config=LFM2),
    config(
        "llama4",
        text_config=config(
            "llama4_text",
            DENSE,
            LOCAL_EXPERTS,
            num_experts_per_tok=1,
            num_hidden_layers=8,
            intermediate_size=64,
            intermediate_size_mlp=128,
            interleave_moe_layer_step=2,
            attention_chunk_size=8,
            rope_scaling=None,
            use_qk_norm=True,
            floor_scale=8,
        ),
    ),
    config(
        "minimax_m3_vl",
        text_config=config(
            "minimax_m3",
            DENSE,
            LOCAL_EXPERTS,
            intermediate_size=64,
            dense_intermediate_size=128,
            shared_intermediate_size=64,
            mlp_layer_types=["dense", "dense", *["sparse"] * 5],
            sparse_attention_config={
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 16,
                "sparse_block_size": 2,
                "sparse_topk_blocks": 3,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 1, 0, 1, 1, 1],
            },
        ),
    ),
    config("mistral3", text_config=MINISTRAL3),
    config(
        "muse_spark",
        text_config=config(
            "muse_spark_text",
            DENSE,
            LOCAL_EXPERTS,
            post_norm_eps=1e-8,
            rope_parameters={"rope_theta": 10000.0},
            layer_rope_theta=[10000.0 if kind == "sliding_attention" else 0.0 for kind in windows()],
            layer_types=windows(),
            sliding_window=WINDOW,
            final_logit_softcapping=20.0,
            output_multiplier=0.5,
            moe_hidden_size=64,
            moe_intermediate_size=64,
            qk_scale_factor=2.0,
        ),
    ),
    config("pixtral", text_config=config("mistral", DENSE)),
    config(
        "prism_hadamard_qwen35",
        text_config=HADAMARD_TEXT,
        schema_version=2,
        tensor_namespace="mlx-vlm-qwen3_5",
        quantization={"bits": 2, "group_size": 128, "mode": "affine"},
        modules=HADAMARD_MODULES,
    ),
    config("qwen2_vl", text_config=config("qwen2", DENSE)),
    config("qwen3_5", text_config=QWEN3_5_TEXT),
    config("qwen3_5_moe", text_config=QWEN3_5_TEXT | EXPERTS | {"shared_expert_intermediate_size": 64}),
    config("qwen3_vl", text_config=config("qwen3", DENSE)),
    config("qwen3_vl_moe", text_config=QWEN3_MOE),
)
