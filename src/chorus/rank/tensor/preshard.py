"""Slices of every layer, stored in a folder per rank under the names that the model's own parameters have.

Whatever renames, stacks or recomputes tensors as they are loaded has run before the cut; a rank then reads its file as
it is. The cuts follow from shapes alone, so a rank that loads its slices knows what else must change in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus.models import LocalModel
from chorus.models.preshard.folder import Division
from chorus.models.preshard.write import FolderContent, Piece, RankFolder, write_folders
from chorus.models.values import ProgressCallback, ignore_progress
from chorus.rank.pipeline.stage import layer_count
from chorus.rank.tensor import divide
from chorus.rank.tensor.cuts import Cut, take
from chorus.rank.tensor.divide import Imagined, TensorPlan
from chorus.rank.upstream import weights as upstream

_STORED_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.uint8: "U8",
    mx.int8: "I8",
    mx.uint16: "U16",
    mx.int16: "I16",
    mx.bool_: "BOOL",
}


def write_sliced_preshard(
    model: LocalModel,
    weights: Sequence[int],
    output: Path,
    progress: ProgressCallback = ignore_progress,
    trust_remote_code: bool = False,
) -> list[RankFolder]:
    """Write a folder per rank under `output` with its slices by these weights. SplitError where none are known."""
    chosen = divide.check(upstream.read_config(model.path), len(weights), tuple(weights))
    contents, layers = [], 0
    for rank in range(len(chosen)):
        lazy = upstream.load_lazily(model.path, trust_remote_code=trust_remote_code)
        layers = layer_count(lazy.model)
        plan = TensorPlan(rank, chosen)
        changes = divide.changes_of(lazy.model, lazy.config, plan, Imagined(rank, len(chosen)))
        divide.apply(lazy.model, changes, lambda path, array, cut: take(array, cut))
        contents.append(FolderContent(_pieces(lazy.model), explicit_quantization(lazy.config, lazy.model)))
    return write_folders(model, Division("tensor", chosen), layers, contents, output, progress)


def load_stored_slices(
    path: Path, plan: TensorPlan, group: mx.distributed.Group, *, trust_remote_code: bool = False
) -> upstream.LazyModel:
    """The model of a rank's folder, divided, with none of its arrays read."""
    config = upstream.read_config(path)
    changes: list[Any] = []

    def note(model: nn.Module) -> None:
        changes.extend(divide.changes_of(model, config, plan, group))

    lazy = upstream.load_lazily(path, trust_remote_code=trust_remote_code, before_weights=note)
    divide.apply(lazy.model, changes, _as_stored)
    return lazy


def explicit_quantization(config: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Upstream infers the bits of a tensor from its shape, which a slice no longer has: so each module says its own."""
    settings = {
        path: {
            "group_size": module.group_size,
            "bits": module.bits,
            "mode": module.mode,
            **({"global_scale": True} if "global_scale" in module else {}),
        }
        for path, module in model.named_modules()
        if "scales" in module
    }
    if not settings:
        return dict(config)
    first = next(iter(settings.values()))
    general = {
        key: (config.get("quantization") or first).get(key, first[key]) for key in ("group_size", "bits", "mode")
    }
    quantization = {**general, **settings}
    return {**config, "quantization": quantization, "quantization_config": quantization}


def _as_stored(path: str, array: mx.array, cut: Cut) -> mx.array:
    wanted = sum(stop - start for start, stop in cut.ranges)
    if array.shape[cut.axis] != wanted:
        raise ValueError(f"{path} has {array.shape[cut.axis]} entries where this rank's slice has {wanted}")
    return array


def _pieces(model: nn.Module) -> list[Piece]:
    """The tensors in the order of the model, so that one of which several are made is read once in a row."""
    return [
        Piece(name, _STORED_NAMES[array.dtype], tuple(array.shape), array.nbytes, _bytes_of([array]))
        for name, array in tree_flatten(model.parameters())
    ]


def _bytes_of(holder: list[mx.array]) -> Callable[[], Iterator[memoryview]]:
    """The bytes of a tensor, computed when it is its turn and let go after it: no more than one is in memory."""

    def content() -> Iterator[memoryview]:
        array = mx.contiguous(holder.pop()).reshape(-1).view(mx.uint8)
        mx.eval(array)
        yield memoryview(cast(Any, array))

    return content
