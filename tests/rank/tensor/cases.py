"""What the ranks run: each architecture, divided evenly and unevenly, in three number formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.architectures import ARCHITECTURES, UNSUPPORTED

FORMATS = ("float32", "bfloat16", "4-bit")

EXACT_TOLERANCE = 2e-5
BFLOAT16_TOLERANCE = 0.05
"""For the typical row of logits. Single rows may differ by much more: where two experts score alike, rounding decides
which one is asked.
"""
PACKED_TOLERANCE = 0.03
"""Likewise, where a quantization group is shared by two ranks: each rounds its own part of the activations, to finer
integers than one rank has for the whole. Where groups are whole, packed products are exact.
"""

OWN = (
    "llama",
    "mistral3",
    "ministral3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "phi3",
    "phi",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe",
    "minimax",
    "olmo2",
    "olmo3",
    "granite",
    "seed_oss",
    "smollm3",
)
UPSTREAM = (
    "deepseek_v2",
    "deepseek_v32",
    "deepseek_v41",
    "exaone_moe",
    "glm4_moe_lite",
    "iquestloopcoder",
    "kimi_k3",
    "longcat_flash",
    "longcat_flash_ngram",
    "minimax_m3_vl",
    "mistral4",
    "muse_spark",
    "qwen3_5",
    "qwen3_5_moe",
    "step3p5",
)

LAYERS = 3
LATE = {"smollm3": 4, "exaone_moe": 4, "minimax_m3_vl": 4, "step3p5": 4, "deepseek_v41": 8}
"""The layers that it takes to have one of every kind, where three are too few."""

THREE_GROUPS = {
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "intermediate_size": 192,
}
FOUR_GROUPS = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
# The heads of 96 end inside quantization groups of 64.
WIDE_HEADS = {"hidden_size": 128, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 96}
ONE_GROUP = {"num_attention_heads": 6, "num_key_value_heads": 1}
# What mlx-lm must divide by three, under all the names that its architectures use.
BY_THREE = {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 192,
    "moe_intermediate_size": 192,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "num_heads": 6,
    "num_attention_groups": 3,
    "o_groups": 3,
    "sparse_num_index_heads": 3,
    "ffn_hidden_size": 192,
    "expert_ffn_hidden_size": 192,
    "dense_intermediate_size": 192,
    "shared_intermediate_size": 192,
    "shared_expert_intermediate_size": 192,
    "share_expert_dim": 192,
    "vocab_size": 384,
}


# Dense, with biases, tied, in one matrix, experts of several kinds, latent heads, divided by mlx-lm itself.
PACKED = (
    "llama",
    "qwen2",
    "phi",
    "phi3",
    "gemma2",
    "olmo3",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe",
    "minimax",
)
PACKED_UPSTREAM = ("deepseek_v2", "exaone_moe", "qwen3_5")
LAID_OUT = ("llama", "qwen2", "phi3", "qwen3_moe", "gpt_oss", "exaone_moe")
"""In float32, multiplied by a CPU's kernels as well: compared with what MLX makes of the whole model."""


@dataclass(frozen=True)
class Case:
    label: str
    config: dict[str, Any]
    format: str
    weights: tuple[int, ...]
    group_size: int = 64
    fault: str | None = None
    """What is done wrong on purpose."""

    @property
    def name(self) -> str:
        shown = f"{self.label} {self.format} {','.join(map(str, self.weights))}"
        return f"{shown} with {self.fault}" if self.fault else shown


def cases(ranks: int) -> Iterator[Case]:
    three, four = {2: ((2, 1), (1, 1)), 3: ((1, 1, 1), (2, 1, 1))}[ranks]
    # All formats of a model in succession: it is made once for them.
    for label in OWN:
        for sizes, weights in ((THREE_GROUPS, three), (FOUR_GROUPS, four)):
            for form in FORMATS:
                yield Case(label, _sized(label, sizes), form, weights)
    for label in UPSTREAM:
        if label not in UNSUPPORTED:
            for form in FORMATS:
                sizes = {} if ranks == 2 else BY_THREE
                yield Case(label, _sized(label, sizes), form, (1,) * ranks, group_size=32)
    yield from _particular(ranks)


def _particular(ranks: int) -> Iterator[Case]:
    straddling = {2: (5, 1), 3: (3, 2, 1)}[ranks]
    even = (1,) * ranks
    four = {2: (1, 1), 3: (2, 1, 1)}[ranks]
    for label in ("llama", "gpt_oss"):
        for form in FORMATS:
            yield Case(label, _sized(label, WIDE_HEADS), form, straddling)
    for label in ("llama", "gemma2", "gpt_oss"):
        # More ranks than groups: all keep the one group's keys and values.
        yield Case(label, _sized(label, ONE_GROUP), "float32", even)
    yield Case("llama", _sized("llama", {**WIDE_HEADS, "attention_bias": True, "mlp_bias": True}), "4-bit", straddling)
    yield Case("llama", _sized("llama", WIDE_HEADS), "mixed", straddling)
    for label in ("llama", "qwen2", "gpt_oss"):
        # Quantized on disk, divided, then unpacked as the dtype policy of a CPU does.
        yield Case(label, _sized(label, FOUR_GROUPS), "unpacked", four)
    yield Case("llama", _sized("llama", WIDE_HEADS), "unpacked", straddling)
    sizes = {} if ranks == 2 else BY_THREE
    yield Case("exaone_moe", _sized("exaone_moe", sizes), "unpacked", even, group_size=32)
    yield Case("qwen2", _sized("qwen2", FOUR_GROUPS), "4-bit", {2: (3, 1), 3: (1, 2, 1)}[ranks])
    for label in PACKED:
        yield Case(label, _sized(label, FOUR_GROUPS), "packed", four)
    for label in LAID_OUT:
        own = label in OWN
        yield Case(label, _sized(label, FOUR_GROUPS if own else sizes), "laid out", four if own else even)
    for label in PACKED_UPSTREAM:
        yield Case(label, _sized(label, sizes), "packed", even, group_size=32)
    for label in ("llama", "gpt_oss"):
        # Groups of which two ranks have a part each.
        yield Case(label, _sized(label, WIDE_HEADS), "packed", straddling)
    for label, fault in (("llama", "shifted columns"), ("phi", "biases on every rank"), ("qwen2", "foreign rows")):
        yield Case(label, _sized(label, FOUR_GROUPS), "float32", four, fault=fault)


def _sized(label: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The tiny configuration with other sizes, as far as it has them."""
    config = dict(ARCHITECTURES[label])
    if "text_config" in config:
        return {**config, "text_config": _shortened(label, _overridden(config["text_config"], sizes))}
    return _shortened(label, _overridden(config, sizes))


def _overridden(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    nested = {key: _overridden(value, sizes) for key, value in config.items() if isinstance(value, dict)}
    return {**config, **nested, **{key: value for key, value in sizes.items() if key in config}}


def _shortened(label: str, config: dict[str, Any]) -> dict[str, Any]:
    """Fewer layers, still of every kind: no rule looks from one layer to the next."""
    name = next((key for key in ("num_hidden_layers", "num_layers") if key in config), None)
    if name is None:
        return config
    layers, enough = config[name], LATE.get(label, LAYERS)
    short = {key: value[:enough] for key, value in config.items() if isinstance(value, list) and len(value) == layers}
    return {**config, **short, name: enough}
