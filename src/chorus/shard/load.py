"""Brings one rank's part of a model into memory: only its own tensors are read, each once, none left random."""

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
from chorus.models import ModelError
from chorus.models.layers import files_for_layers, layer_of
from chorus.models.tensors import read_header, weight_files, weight_map
from chorus.platform.dtype import DtypePolicy, choose_dtype
from chorus.platform.memory import device_memory
from chorus.shard import upstream_weights as upstream
from chorus.shard.pipeline import Stage, config_layers, layer_count
from chorus.shard.slices import SliceReader, stored_parameters
from chorus.shard.tensor import TensorPlan, TensorStage, shard_model
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
    """Load the layers that `layers(total)` names, and whatever a stage holding them needs besides (pipeline)."""
    own = layers(stored_layers(path))
    # A rank that fetched only its own files has far layers of which some tensors are there and some are not; upstream
    # trips over those, so they are hidden whole.
    partial = _partial_layers(path) - set(own)
    _check_files(path, own)
    try:
        lazy = upstream.load_lazily(
            path, trust_remote_code=trust_remote_code, wanted=lambda name: layer_of(name) not in partial
        )
        stage = Stage(lazy.model, own.start, own.stop)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LoadError(f"cannot load the model in {path}: {error}") from error
    _check_complete(path, lazy, own)
    return _finish(path, lazy, stage, dtype, memory_fraction, progress)


def load_slices(
    path: Path,
    plan: TensorPlan,
    group: mx.distributed.Group,
    *,
    dtype: str = "auto",
    memory_fraction: float = 0.8,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> LoadedShard:
    """Load this rank's slice of every layer (tensor); what other ranks hold is not read from disk."""
    whole = range(stored_layers(path))
    _check_files(path, whole)
    try:
        lazy = upstream.load_lazily(path, trust_remote_code=trust_remote_code)
        _check_complete(path, lazy, whole)
        shard_model(lazy.model, lazy.config, plan, group, read=SliceReader(stored_parameters(path, lazy.config)))
        stage = TensorStage(lazy.model)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LoadError(f"cannot load the model in {path}: {error}") from error
    return _finish(path, lazy, stage, dtype, memory_fraction, progress)


def _check_complete(path: Path, lazy: upstream.LazyModel, own: range) -> None:
    missing = sorted(name for name, _ in tree_flatten(lazy.model.parameters()) if name not in lazy.loaded)
    if missing:
        raise LoadError(f"{path} lacks {len(missing)} tensors of layers {own.start}-{own.stop - 1}, first {missing[0]}")


def _finish(
    path: Path, lazy: upstream.LazyModel, stage: Stage, dtype: str, memory_fraction: float, progress: Progress
) -> LoadedShard:
    policy = _choose_dtype(lazy.model, dtype, int(device_memory(mx).available * memory_fraction))
    _apply(lazy.model, policy)
    weight_bytes = _read(path, lazy.model, progress)
    config = lazy.config
    return LoadedShard(stage, config, policy, weight_bytes, context_length(config), vocabulary(config))


def _check_files(path: Path, own: range) -> None:
    """A truncated file is told by the tensor it lacks, before anything is read."""
    mapping = weight_map(path)
    names = files_for_layers(mapping, own, stored_layers(path)) if mapping else [f.name for f in weight_files(path)]
    try:
        for name in names:
            if (path / name).is_file():
                read_header(path / name)
    except ModelError as error:
        raise LoadError(str(error)) from error


def _partial_layers(path: Path) -> set[int]:
    """Layers with a tensor in a file that is not there."""
    absent = {file for file in set(weight_map(path).values()) if not (path / file).is_file()}
    return {
        layer for name, file in weight_map(path).items() if file in absent and (layer := layer_of(name)) is not None
    }


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


def vocabulary(config: dict[str, Any]) -> int:
    """How many token ids there are; 0 where the configuration does not say."""
    text = {**config, **(config.get("text_config") or {})}
    return int(text.get("vocab_size") or 0)


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
