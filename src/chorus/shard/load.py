"""Brings one rank's slice of a model into memory: only its own tensors are read, each exactly once, none left random."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus import platform
from chorus.platform.dtype import DtypePolicy, choose_dtype
from chorus.platform.memory import device_memory
from chorus.shard import upstream_weights as upstream
from chorus.shard.pipeline import Stage, config_layers, layer_count
from chorus.shard.upstream import build

log = logging.getLogger("chorus.shard")


class LoadError(Exception):
    """The model cannot be loaded as asked: names the thing and the remedy."""


@dataclass(frozen=True)
class LoadedShard:
    stage: Stage
    config: dict[str, Any]
    policy: DtypePolicy
    weight_bytes: int
    context_length: int
    vocabulary: int


Progress = Callable[[int, int], None]
"""Bytes read so far, bytes in all."""


def load_shard(
    path: Path,
    layers: Callable[[int], range],
    *,
    dtype: str = "auto",
    memory_fraction: float = 0.8,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> LoadedShard:
    """Load the layers that `layers(total)` names, and whatever a stage holding them needs besides."""
    try:
        lazy = upstream.load_lazily(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LoadError(f"cannot load the model in {path}: {error}") from error
    model, config = lazy.model, lazy.config
    own = layers(layer_count(model))
    stage = Stage(model, own.start, own.stop)
    missing = sorted(name for name, _ in tree_flatten(model.parameters()) if name not in lazy.loaded)
    if missing:
        raise LoadError(f"{path} lacks {len(missing)} tensors of layers {own.start}-{own.stop - 1}, first {missing[0]}")
    policy = _choose_dtype(model, dtype, int(device_memory(mx).available * memory_fraction))
    _apply(model, policy)
    weight_bytes = _read(path, model, progress)
    return LoadedShard(stage, config, policy, weight_bytes, context_length(config), vocabulary(config, stage))


def stored_layers(path: Path) -> int:
    """How many layers the model in a folder has, without reading any of them."""
    try:
        config = upstream.read_config(path)
        return config_layers(config) or layer_count(build(config))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot read the model in {path}: {error}") from error


def context_length(config: dict[str, Any]) -> int:
    """The longest sequence the model was made for; a cautious 2,048 where its configuration does not say."""
    text = {**config, **(config.get("text_config") or {})}
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
    found = [text[key] for key in keys if isinstance(text.get(key), int) and text[key] > 0]
    return found[0] if found else 2048


def vocabulary(config: dict[str, Any], stage: Stage) -> int:
    text = {**config, **(config.get("text_config") or {})}
    return int(text["vocab_size"]) if "vocab_size" in text else 0


def _choose_dtype(model: nn.Module, wanted: str, budget: int) -> DtypePolicy:
    parameters = tree_flatten(model.parameters())
    stored = sum(array.nbytes for _, array in parameters)
    elements = upstream.count_elements(model)
    floating = next((a.dtype for _, a in parameters if mx.issubdtype(a.dtype, mx.floating)), mx.float32)
    return choose_dtype(
        backend=platform.device.backend(),
        stored_dtype=str(floating).rpartition(".")[2],
        quantized=upstream.is_quantized(model),
        stored_bytes=stored,
        dequantized_float32_bytes=elements * 4,
        dequantized_bf16_bytes=elements * 2,
        budget=budget,
        wanted=wanted,
    )


def _apply(model: nn.Module, policy: DtypePolicy) -> None:
    """Only changes the graph; nothing is read or computed yet."""
    if policy.dtype != "stored":
        # Scales first, so that dequantizing happens in the final precision and loses nothing.
        model.set_dtype(getattr(mx, policy.dtype))
    if policy.dequantize:
        upstream.dequantize(model, getattr(mx, policy.dtype))


def _read(path: Path, model: nn.Module, progress: Progress) -> int:
    """Compute the parameters one by one, so that the peak stays one tensor above the shard itself."""
    parameters = tree_flatten(model.parameters())
    total = sum(array.nbytes for _, array in parameters)
    done = 0
    for name, array in parameters:
        try:
            mx.eval(array)
        except RuntimeError as error:
            raise LoadError(f"cannot read tensor {name} from {path}: {error}") from error
        done += array.nbytes
        progress(done, total)
    mx.clear_cache()
    return total
