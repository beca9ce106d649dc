"""Brings one rank's part of a model into memory: only its own tensors are read, each once, none left random."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus import platform
from chorus.errors import ChorusError
from chorus.models import ModelError
from chorus.models.description import vocabulary
from chorus.models.layer_names import files_for_layers, is_tied, layers_of_names
from chorus.models.preshard.folder import Division, is_preshard, open_preshard
from chorus.models.tensors import read_header, weight_files, weight_map
from chorus.platform.accelerator.dtype import UNPACKED, DtypePolicy, choose_dtype, on_backend, planned_policy
from chorus.platform.cpu import blas
from chorus.platform.memory import mac, metal
from chorus.platform.memory.amounts import bound_freed_buffers, device_memory, mac_budget
from chorus.platform.sizes import size
from chorus.rank.cache.packed import CannotPack, packing_of
from chorus.rank.cuda import hooks as cuda
from chorus.rank.pipeline.stage import Stage, config_layers, layer_count
from chorus.rank.products.joined import join_products, pays
from chorus.rank.products.usable import usable
from chorus.rank.products.worth import any_worth
from chorus.rank.tensor.divide import TensorPlan, shard_model
from chorus.rank.tensor.preshard import load_stored_slices
from chorus.rank.tensor.stored_slices import LateSlices, SliceReader, stored_parameters
from chorus.rank.upstream import weights as upstream
from chorus.rank.upstream.decoders import build

log = logging.getLogger("chorus.rank")


# What mlx-lm trips over where a configuration says something else than it expects, or does not say it.
_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError)


class LoadError(ChorusError):
    """The model cannot be loaded as asked: names the thing and the remedy."""


def _cannot_load(path: Path, error: Exception) -> LoadError:
    if isinstance(error, _MISFITS):
        return LoadError(
            f"cannot load the model in {path}: mlx-lm cannot use its config.json ({error}); fetch it again"
        )
    return LoadError(f"cannot load the model in {path}: {error}")


@dataclass(frozen=True)
class LoadedShard:
    """A rank's part of a model, in memory and ready to run."""

    stage: Stage
    config: dict[str, Any]
    policy: DtypePolicy
    weight_bytes: int
    path: Path
    """The folder that its weights came from."""
    in_kernels: bool
    """Whether the kernels of chorus.rank.products multiply, whose threads were chosen before it was loaded."""
    budget: mac.Budget | None = None
    """What this rank may take of a Mac's memory in all; None elsewhere."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are; 0 where the configuration does not say."""
        return vocabulary(self.config)

    @property
    def dtype(self) -> str:
        """The number type that it computes in, by name, also where weights are kept as they are stored."""
        own = self.stage.number_type
        return self.policy.dtype if own is None else dtype_name(own)


Progress = Callable[[int, int], None]
"""Bytes read so far, bytes in all."""


def load_shard(
    path: Path,
    layers: Callable[[int], range],
    *,
    dtype: str = "auto",
    cpu_products: str = "auto",
    pack: int | None = None,
    policy: str | None = None,
    kv_bits: int = 0,
    memory_fraction: float = 0.8,
    ranks_here: int = 1,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> LoadedShard:
    """Load the layers that `layers(total)` names, and whatever a stage holding them needs besides (pipeline).

    `policy` is what a plan decided about the weights; without one, `dtype`, `cpu_products`, `pack` and the free
    memory decide.
    """
    own, mapping = layers(total := stored_layers(path)), weight_map(path)
    # A rank that fetched only its own files has far layers of which some tensors are there and some are not; upstream
    # trips over those, so they are hidden whole.
    hidden = _partial_tensors(path, mapping, own)
    _check_files(path, mapping, own, total)
    try:
        lazy = upstream.load_lazily(path, trust_remote_code=trust_remote_code, wanted=lambda name: name not in hidden)
        stage = _stage(lazy.model, own, kv_bits)
    except CannotPack as error:
        raise LoadError(str(error)) from error
    except (OSError, ValueError, RuntimeError, *_MISFITS) as error:
        raise _cannot_load(path, error) from error
    _check_complete(path, lazy, own)
    share = _Share(memory_fraction, ranks_here)
    return _finish(path, lazy, stage, _Numbers(_Asked(dtype, cpu_products, pack), policy, share), progress)


def load_slices(
    path: Path,
    plan: TensorPlan,
    group: mx.distributed.Group,
    layers: Callable[[int], range] = range,
    *,
    dtype: str = "auto",
    cpu_products: str = "auto",
    pack: int | None = None,
    policy: str | None = None,
    kv_bits: int = 0,
    memory_fraction: float = 0.8,
    ranks_here: int = 1,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> LoadedShard:
    """Load this rank's slice of every layer that `layers(total)` names (tensor; with fewer than all, hybrid); what
    other ranks hold is not read from disk.
    """
    whole = range(total := stored_layers(path))
    own = layers(total)
    slices = LateSlices()
    _check_files(path, weight_map(path), whole, total)
    try:
        if stored_apart := is_preshard(path):
            lazy = load_stored_slices(path, plan, group, trust_remote_code=trust_remote_code)
            _check_complete(path, lazy, whole)
        else:
            lazy = upstream.load_lazily(path, trust_remote_code=trust_remote_code)
            _check_complete(path, lazy, whole)
            shard_model(lazy.model, lazy.config, plan, group, read=slices.note)
        stage = _stage(lazy.model, own, kv_bits)
        if not stored_apart:
            slices.read(lazy.model, SliceReader(stored_parameters(path, lazy.config)))
    except CannotPack as error:
        raise LoadError(str(error)) from error
    except (OSError, ValueError, RuntimeError, *_MISFITS) as error:
        raise _cannot_load(path, error) from error
    share = _Share(memory_fraction, ranks_here)
    return _finish(path, lazy, stage, _Numbers(_Asked(dtype, cpu_products, pack), policy, share), progress)


def own_folder(path: Path, rank: int, split: Sequence[int] | None, weights: Sequence[int] | None) -> Path:
    """Where this rank's tensors are: the model's folder, or of a presharded one the part that was made for it."""
    if not is_preshard(path):
        return path
    try:
        return open_preshard(path, rank, Division.of(split, weights))
    except ModelError as error:
        raise LoadError(str(error)) from error


def _stage(model: nn.Module, own: range, kv_bits: int) -> Stage:
    return Stage(model, own.start, own.stop, packing_of(model, kv_bits) if kv_bits else None)


def _check_complete(path: Path, lazy: upstream.LazyModel, own: range) -> None:
    missing = sorted(name for name, _ in tree_flatten(lazy.model.parameters()) if name not in lazy.loaded)
    if missing:
        raise LoadError(f"{path} lacks {len(missing)} tensors of layers {own.start}-{own.stop - 1}, first {missing[0]}")


@dataclass(frozen=True)
class _Share:
    """What a rank may take of its machine's free memory: a fraction, of which each rank there has its part."""

    fraction: float
    ranks: int


@dataclass(frozen=True)
class _Asked:
    """What the settings say of the weights."""

    dtype: str
    cpu_products: str
    pack: int | None


@dataclass(frozen=True)
class _Numbers:
    """How weights are kept: as a plan decided, or where there is none by our own rule."""

    asked: _Asked
    planned: str | None
    share: _Share

    def policy(self, model: nn.Module) -> DtypePolicy:
        available = device_memory(mx).available
        if self.planned is None:
            return _choose_dtype(model, self.asked, int(available * self.share.fraction))
        planned = planned_policy(self.planned)
        chosen = on_backend(planned, platform.device.backend(), kernels=planned.packed and usable())
        needed = upstream.count_elements(model) * getattr(mx, chosen.dtype).size if chosen.dequantize else 0
        if needed > available:
            raise LoadError(
                f"the plan unpacks the weights to {needed / 2**20:.0f} MiB and {available / 2**20:.0f} MiB are free: "
                "end other programs, or start with --dtype stored"
            )
        return chosen


def _finish(path: Path, lazy: upstream.LazyModel, stage: Stage, numbers: _Numbers, progress: Progress) -> LoadedShard:
    cuda.install()
    policy = numbers.policy(lazy.model)
    _apply(lazy.model, policy)
    budget = mac_budget(mx, numbers.share.fraction, numbers.share.ranks)
    if budget:
        _check_room(path, lazy.model, budget)
    tied = stage.is_last and is_tied(lazy.config, lazy.loaded)
    in_kernels = policy.packed or _lays_out(lazy.model, stage, tied, numbers.asked)
    if in_kernels:
        weight_bytes = _fill_kernels(path, lazy.model, policy, stage, tied, progress)
    else:
        blas.set_threads(platform.rank_threads())  # a model before it, in kernels, may have taken some
        if pays(platform.device.backend()):
            join_products(lazy.model)
        weight_bytes = _read(path, lazy.model, progress)
    if budget:
        metal.hold(mx, weight_bytes, budget)
    else:
        bound_freed_buffers(mx)
    return LoadedShard(stage, lazy.config, policy, weight_bytes, path, in_kernels, budget)


def _check_room(path: Path, model: nn.Module, budget: mac.Budget) -> None:
    needed = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    if needed > budget.room:
        raise LoadError(f"the weights of {path.name} take {size(needed)} here, and there are {budget}: {mac.REMEDY}")


def _check_files(path: Path, mapping: Mapping[str, str], own: range, total: int) -> None:
    """A truncated file is told by the tensor it lacks, before anything is read."""
    names = files_for_layers(mapping, own, total) if mapping else [f.name for f in weight_files(path)]
    try:
        for name in names:
            if (path / name).is_file():
                read_header(path / name)
    except ModelError as error:
        raise LoadError(str(error)) from error


def _partial_tensors(path: Path, mapping: Mapping[str, str], own: range) -> set[str]:
    """The tensors of far layers of which some lie in a file that is not there."""
    absent = {file for file in set(mapping.values()) if not (path / file).is_file()}
    indices = layers_of_names(mapping)
    partial = {layer for name, layer in indices.items() if mapping[name] in absent} - set(own)
    return {name for name, layer in indices.items() if layer in partial}


def stored_layers(path: Path) -> int:
    """How many layers the model in a folder has, without reading any of them."""
    try:
        config = upstream.read_config(path)
        return config_layers(config) or layer_count(build(config))
    except (OSError, ValueError, *_MISFITS) as error:
        raise _cannot_load(path, error) from error


def dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _choose_dtype(model: nn.Module, asked: _Asked, budget: int) -> DtypePolicy:
    parameters = tree_flatten(model.parameters())
    stored = sum(array.nbytes for _, array in parameters)
    elements = upstream.count_elements(model)
    floating = next((a.dtype for _, a in parameters if mx.issubdtype(a.dtype, mx.floating)), mx.float32)
    quantized = upstream.is_quantized(model)
    # Whoever has no use for the kernels does not even import them.
    packable = asked.cpu_products not in UNPACKED and (quantized or bool(asked.pack))
    return choose_dtype(
        backend=platform.device.backend(),
        stored_dtype=dtype_name(floating),
        quantized=quantized,
        stored_bytes=stored,
        dequantized_float32_bytes=elements * 4,
        dequantized_bf16_bytes=elements * 2,
        budget=budget,
        wanted=asked.dtype,
        cpu_products=asked.cpu_products,
        pack=asked.pack,
        kernels=packable and usable(),
    )


def _apply(model: nn.Module, policy: DtypePolicy) -> None:
    """Put weights into the number type of a policy. Only the graph changes; nothing is read or computed yet."""
    if policy.dtype != "stored":
        # Scales first, so that dequantizing happens in the final precision and loses nothing.
        model.set_dtype(getattr(mx, policy.dtype))
    if policy.dequantize:
        upstream.dequantize(model, getattr(mx, policy.dtype))
    if policy.quantize_to:
        upstream.quantize(model, policy.quantize_to)


def _lays_out(model: nn.Module, stage: Stage, tied: bool, asked: _Asked) -> bool:
    """Whether kernels multiply with plain weights here, laid out for them once.

    A tied head stays the BLAS's where its rows are looked up too. With several threads each, both pools would work in
    turn all the time, in each other's way: so either both have one, or the BLAS multiplies everything. On two cores one
    thread in kernels does as much as two of the BLAS, and does not fall behind as soon as something else runs.
    """
    if platform.device.backend() != "cpu" or asked.cpu_products == "blas":
        return False
    if not any_worth(model, head_only=tied and not stage.is_first):
        return False
    if not (tied and stage.is_first):
        return usable()
    if platform.rank_threads() > 1:
        return False
    with platform.no_more_threads():
        return usable()


def _fill_kernels(
    path: Path, model: nn.Module, policy: DtypePolicy, stage: Stage, tied: bool, progress: Progress
) -> int:
    """Give the products to the kernels, then read what MLX keeps."""
    from chorus.rank.products.convert import lay_out_products, pack_products
    from chorus.rank.products.threads import share_threads

    total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    done = 0

    def read(more: int) -> None:
        nonlocal done
        done += more
        progress(min(done, total), total)

    try:
        share_threads()
        if policy.packed:
            held = pack_products(model, tied_head=tied, progress=read)
        else:
            held = lay_out_products(model, head_only=tied and not stage.is_first, progress=read)
    except RuntimeError as error:
        raise LoadError(f"cannot read the weights in {path}: {error}") from error
    return held + _read(path, model, lambda more, _: progress(min(done + more, total), total))


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
