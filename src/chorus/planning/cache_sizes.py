"""How much one layer remembers, from the shapes of its tensors and the configuration.

Rows of a projection are never packed, so the width of keys and values can be read off the stored tensors; only fused
projections need the numbers of heads. What a rule does not know is counted as full attention, which errs on the safe
side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorus.models.architectures import architecture

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name inside the layer to shape."""


@dataclass(frozen=True)
class CacheFacts:
    """How many numbers, not bytes, a layer keeps for each sequence."""

    per_token: int = 0
    window: int | None = None
    """The most tokens that are kept; None where all of them are."""
    state: int = 0
    """Numbers that are kept however long the sequence is."""

    def numbers(self, tokens: int) -> int:
        kept = tokens if self.window is None else min(tokens, self.window)
        return self.per_token * kept + self.state


_KEY = re.compile(r"(?:^|\.)(?:k_proj|c_k|attn_key|wk)\.weight$")
_VALUES = {"k_proj": "v_proj", "c_k": "c_v", "attn_key": "attn_value", "wk": "wv"}
_FUSED = re.compile(
    r"(?:^|\.)(?P<name>qkv_proj|c_attn|query_key_value|wqkv|W_pack|Wqkv|att_proj|q_k_v_proj|qkvg_proj)\.weight$"
)
_CONVOLUTION = re.compile(r"conv[^.]*(?:\.conv)?\.weight$")


def cache_of_layer(index: int, shapes: Shapes, config: Mapping[str, Any]) -> CacheFacts:
    """What one layer keeps. `config` is the decoder's own; `outer_type` in it names the wrapper, whose choice of caches
    may differ.
    """
    model_type = str(config.get("model_type"))
    if _borrows_its_keys(index, config):
        return CacheFacts()
    if model_type == "rwkv7":
        return CacheFacts(state=_rwkv_state(shapes, config))
    state = _convolution_state(shapes) + _recurrent_state(shapes, config)
    per_token = sum(_attention_widths(index, shapes, config))
    if taps := config.get("conv_window"):
        state += per_token * (int(taps) - 1)  # the last keys and values once more, before their convolution
    loops = int(_first(config, "num_loops", "loop_num") or 1)
    return CacheFacts(per_token * loops, _window(index, config) if per_token else None, state)


def _borrows_its_keys(index: int, config: Mapping[str, Any]) -> bool:
    borrowed = config.get("num_kv_shared_layers") or config.get("num_kv_reuse_layers") or 0
    layers = config.get("num_hidden_layers") or config.get("num_layers") or 0
    return bool(borrowed) and index >= layers - borrowed


def _attention_widths(index: int, shapes: Shapes, config: Mapping[str, Any]) -> Iterator[int]:
    model_type = str(config.get("model_type"))
    recurrent = set(_recurrent_modules(shapes))
    for name, shape in shapes.items():
        parent = name.rpartition(".")[0].rpartition(".")[0]
        if any(parent == module or parent.startswith(f"{module}.") for module in recurrent):
            continue
        if name.endswith("kv_a_proj_with_mqa.weight"):
            expanded = architecture(model_type).expands_latents
            yield _expanded_latent(config) if expanded else shape[0]
        elif name.endswith("indexer.wk.weight"):
            yield 2 * shape[0]
        elif name.endswith(("index_k_proj.weight", "self_attn.kv_proj.weight")):
            yield shape[0]
        elif (key := _KEY.search(name)) and "indexer" not in name:
            own = key[0].strip(".").removesuffix(".weight")
            values = shapes.get(name.removesuffix(f"{own}.weight") + f"{_VALUES[own]}.weight", shape)
            yield shape[0] + values[0]
        elif fused := _FUSED.search(name):
            yield _fused_width(index, fused["name"], shape[0], config)
    if config.get("use_cla") and not any(_KEY.search(name) for name in shapes):
        yield 2 * _heads(index, config)[1] * _head_dim(config)


def _fused_width(index: int, name: str, rows: int, config: Mapping[str, Any]) -> int:
    queries, groups = _heads(index, config)
    if str(config.get("model_type")) == "gpt_bigcode" and config.get("multi_query", True):
        groups = 1
    shares = (2 if name == "qkvg_proj" else 1) * queries + 2 * groups
    return rows * 2 * groups // shares


def _heads(index: int, config: Mapping[str, Any]) -> tuple[int, int]:
    """How many query heads and how many key/value heads one layer has."""
    attention = config.get("attn_config") if isinstance(config.get("attn_config"), dict) else {}
    queries = _first(config, "num_attention_heads", "n_heads", "n_head", "num_heads", "num_query_heads")
    groups = _first(
        {**config, **(attention or {})},
        "num_key_value_heads",
        "n_kv_heads",
        "kv_n_heads",
        "num_kv_heads",
        "n_head_kv",
        "num_query_groups",
    )
    if index in (config.get("sliding_window_layers") or ()):
        queries = config.get("num_swa_attention_heads", queries)
        groups = config.get("num_swa_key_value_heads", groups)
    own_queries = int(_of_layer(queries, index) or 1)
    if architecture(str(config.get("model_type"))).keys_for_every_head:
        return own_queries, own_queries
    return own_queries, int(_of_layer(groups, index) or own_queries)


def _head_dim(config: Mapping[str, Any]) -> int:
    given = _first(config, "head_dim", "kv_channels", "attention_head_dim")
    hidden = _first(config, "hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim") or 0
    return int(given or hidden // max(1, _heads(0, config)[0]))


def _expanded_latent(config: Mapping[str, Any]) -> int:
    heads = _heads(0, config)[0]
    key = int(config.get("qk_nope_head_dim", 0)) + int(config.get("qk_rope_head_dim", 0))
    value = int(config.get("v_head_dim") or 0)
    if not value or config.get("model_type") == "minicpm3":
        value = int(config.get("hidden_size", 0)) // heads
    return heads * (key + value)


def _convolutions(shapes: Shapes) -> Iterator[tuple[str, int, int]]:
    """(module, channels, taps) of each one-dimensional convolution, whichever way its weight is stored."""
    for name, shape in shapes.items():
        if len(shape) == 3 and _CONVOLUTION.search(name):
            yield name.rpartition(".")[0], shape[0], max(shape[1:])


def _convolution_state(shapes: Shapes) -> int:
    return sum(channels * (taps - 1) for _, channels, taps in _convolutions(shapes))


def _recurrent_modules(shapes: Shapes) -> Iterator[str]:
    """The modules that convolve or forget: their keys are not kept."""
    for module, _, _ in _convolutions(shapes):
        yield module.removesuffix(".conv").rpartition(".")[0]
    for name in shapes:
        # Lightning attention: a gate and a norm beside a fused projection, and no convolution.
        if name.endswith("attention.g_norm.weight"):
            yield name.removesuffix(".g_norm.weight")


def _recurrent_state(shapes: Shapes, config: Mapping[str, Any]) -> int:
    """What a state-space or linear-attention module carries besides its convolution."""
    modules = set(_recurrent_modules(shapes))
    decay = {name: shape for name, shape in shapes.items() if name.endswith("A_log") and len(shape) == 2}
    if decay:
        return sum(math.prod(shape) for shape in decay.values())  # Mamba: one state per channel
    if any(name.endswith("rg_lru.a_gate_bias") or ".rg_lru." in name for name in shapes):
        return next((channels for _, channels, _ in _convolutions(shapes)), 0)
    if any("linear_attn." in name for name in shapes):
        return (
            int(_first(config, "linear_num_value_heads") or _heads(0, config)[0])
            * int(_first(config, "linear_key_head_dim") or _head_dim(config))
            * int(_first(config, "linear_value_head_dim") or _head_dim(config))
        )
    gated = any(name.endswith(("f_b_proj.weight", "f_proj.weight", "attention.g_norm.weight")) for name in shapes)
    if modules and gated:
        linear = config.get("linear_attn_config") or {}
        heads = int(linear.get("num_heads") or _heads(0, config)[0])
        width = int(linear.get("head_dim") or _head_dim(config))
        return heads * width * width
    if any(name.endswith(("A_log", "dt_bias")) for name in shapes) and modules:
        return _mamba2_state(shapes, config)
    return 0


def _mamba2_state(shapes: Shapes, config: Mapping[str, Any]) -> int:
    width = int(_first(config, "ssm_state_size", "mamba_d_state", "state_size", "d_state") or 0)
    heads = next((math.prod(shape) for name, shape in shapes.items() if name.endswith(("A_log", "dt_bias"))), 0)
    head = _first(config, "mamba_head_dim", "mamba_d_head", "head_dim", "hidden_size_per_head") or 0
    return heads * int(head) * width


def _rwkv_state(shapes: Shapes, config: Mapping[str, Any]) -> int:
    hidden = int(config.get("hidden_size", 0))
    head = int(config.get("head_dim", 64))
    return hidden * head + 2 * hidden


def _window(index: int, config: Mapping[str, Any]) -> int | None:
    """The tokens that this layer keeps, where it does not keep all."""
    if any(architecture(str(config.get(key))).ignores_windows for key in ("model_type", "outer_type")):
        return None
    if config.get("outer_type") == "llama4":
        return int(config.get("attention_chunk_size") or 0) or None if (index + 1) % 4 else None
    if limit := config.get("attention_window_size"):
        return int(limit)
    size = _first(config, "sliding_window", "sliding_window_size", "window_size")
    if not isinstance(size, int) or not _slides(index, config):
        return None
    return size


def _slides(index: int, config: Mapping[str, Any]) -> bool:
    kinds: Sequence[Any] | None = config.get("layer_types")
    if kinds:
        return index < len(kinds) and any(word in str(kinds[index]) for word in ("sliding", "chunked"))
    if pattern := config.get("hybrid_layer_pattern"):
        return index < len(pattern) and bool(pattern[index])
    if layers := config.get("sliding_window_layers"):
        return index in layers
    pattern = _first(config, "sliding_window_pattern", "_sliding_window_pattern", "interleaved_sliding_window")
    if isinstance(pattern, str):
        return pattern[index % len(pattern)] == "L"
    if isinstance(pattern, int):
        return (index + 1) % pattern != 0
    return False


def _of_layer(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) else value


def _first(config: Mapping[str, Any], *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)
