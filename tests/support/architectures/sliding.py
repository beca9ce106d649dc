"""Decoders that mix sliding-window layers with full attention; some share keys between layers."""

from __future__ import annotations

from .shared import DENSE, WINDOW, Config, by_name, config, windows

# The last layers of the two Gemmas attend to keys that an earlier layer of their kind has made.
SHARED_KEYS: Config = {
    "num_hidden_layers": 8,
    "num_kv_shared_layers": 3,
    "layer_types": windows("ssfssfsf", 8),
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": DENSE["vocab_size"],
    "sliding_window": WINDOW,
    "final_logit_softcapping": 30.0,
}
GEMMA3_TEXT: Config = config(
    "gemma3_text", DENSE, sliding_window=WINDOW, sliding_window_pattern=3, query_pre_attn_scalar=16
)
GEMMA3N_TEXT: Config = config(
    "gemma3n_text",
    DENSE,
    SHARED_KEYS,
    rope_local_base_freq=10000.0,
    activation_sparsity_pattern=[0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
    altup_num_inputs=3,
    altup_coef_clip=120.0,
    altup_correct_scale=True,
    altup_active_idx=0,
    laurel_rank=64,
)
GEMMA4_TEXT: Config = config("gemma4_text", DENSE, SHARED_KEYS, global_head_dim=32, tie_word_embeddings=True)
MINISTRAL3: Config = config(
    "ministral3",
    DENSE,
    layer_types=windows(),
    sliding_window=WINDOW,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 8,
    },
)

CONFIGS = by_name(
    config("cohere2", DENSE, sliding_window=WINDOW, sliding_window_pattern=3),
    config("exaone4", DENSE, rope_scaling=None, sliding_window=WINDOW, sliding_window_pattern="LLG"),
    GEMMA3_TEXT,
    config("gemma3n", text_config=GEMMA3N_TEXT),
    GEMMA4_TEXT,
    MINISTRAL3,
    config("muse_glimmer", DENSE, layer_types=windows(), sliding_window=WINDOW, qk_scale_factor=2.0),
    config("olmo3", DENSE, layer_types=windows(), sliding_window=WINDOW),
    config("plamo3", DENSE, sliding_window=WINDOW, sliding_window_pattern=3),
    config(
        "spark2_5",
        DENSE,
        layer_types=windows(),
        sliding_window=WINDOW,
        rope_parameters={
            "sliding_attention": {"rope_theta": 10000.0},
            "full_attention": {"rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
        },
    ),
)
