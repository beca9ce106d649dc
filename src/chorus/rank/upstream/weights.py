"""The second door to mlx-lm: its loader and its quantized modules. Nothing is read from disk here but headers."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from chorus.platform.cpu.products import PACK_GROUP
from chorus.platform.storage.filelimit import keep_file_limit
from chorus.rank.upstream.forms import Table, converted

with keep_file_limit():  # mlx_lm.utils lowers it for the whole process
    from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
    from mlx_lm.utils import load_config, load_model

    from chorus.rank.upstream.decoders import architecture_module, architecture_name

Weights = dict[str, mx.array]


@dataclass(frozen=True)
class LazyModel:
    """A model of which no array has been read."""

    model: nn.Module
    config: dict[str, Any]
    loaded: frozenset[str]
    """Parameters that a file provides; any other still has the random value it was made with."""


def read_config(path: Path) -> dict[str, Any]:
    return load_config(path)


def load_lazily(
    path: Path,
    *,
    trust_remote_code: bool = False,
    wanted: Callable[[str], bool] = lambda name: True,
    before_weights: Callable[[nn.Module], None] = lambda model: None,
) -> LazyModel:
    """Load a model as mlx-lm does, with every array unread. `wanted` hides stored tensors by the name they have in the
    file; `before_weights` sees the model with the shapes that its configuration says, before those of the file replace
    them.

    Upstream's check is all or nothing, and a rank may hold only some of the files: so it is switched off, and the
    names that were found are handed back for ours.
    """
    loaded: set[str] = set()
    said = load_config(path)
    overrides: dict[str, Any] = {}
    # Upstream would take a folder's own classes past the hook below.
    if own_code := said.get("model_file"):
        overrides["model_file"] = None
    # Upstream looks into it, unless it is missing.
    if said.get("text_config", {}) is None:
        overrides["text_config"] = {}
    if own_code and not trust_remote_code:
        raise ValueError(f"its architecture is code of its own ({own_code}): read it, then allow --trust-remote-code")

    def classes(config: dict[str, Any]) -> tuple[Callable[[Any], nn.Module], Any]:
        module = _own_code(path / own_code) if own_code else architecture_module(architecture_name(config))

        def make(args: Any) -> nn.Module:
            model = module.Model(args)
            _observe(model, wanted, loaded, before_weights)
            return model

        return make, module.ModelArgs

    model, config = load_model(
        path,
        lazy=True,
        strict=False,
        model_config=overrides,
        get_model_classes=classes,
    )
    for hook in ("sanitize", "load_weights"):
        model.__dict__.pop(hook, None)
    return LazyModel(model, config, frozenset(loaded))


def _own_code(file: Path) -> types.ModuleType:
    """The module that a model folder brings itself: its owner has said that it may run."""
    spec = importlib.util.spec_from_file_location("chorus_custom_model", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"config.json names {file.name} as the model's code, and it is not in {file.parent}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _observe(
    model: nn.Module, wanted: Callable[[str], bool], loaded: set[str], before_weights: Callable[[nn.Module], None]
) -> None:
    sanitize = getattr(type(model), "sanitize", lambda self, weights: weights)
    load_weights = type(model).load_weights

    def filtered(self: nn.Module, weights: Weights) -> Weights:
        return sanitize(self, {name: array for name, array in weights.items() if wanted(name)})

    def recorded(self: nn.Module, weights: list[tuple[str, mx.array]], strict: bool = True) -> nn.Module:
        loaded.update(name for name, _ in weights)
        before_weights(self)
        return load_weights(self, weights, strict=strict)

    model.__dict__["sanitize"] = types.MethodType(filtered, model)
    model.__dict__["load_weights"] = types.MethodType(recorded, model)


PLAIN_FORMS: Table = {
    nn.QuantizedLinear: nn.Linear,
    # What mlx-lm's own division makes of linear layers.
    nn.QuantizedAllToShardedLinear: nn.AllToShardedLinear,
    nn.QuantizedShardedToAllLinear: nn.ShardedToAllLinear,
    nn.QuantizedEmbedding: nn.Embedding,
    QuantizedSwitchLinear: SwitchLinear,
    QuantizedMultiLinear: MultiLinear,
}


def is_quantized(model: nn.Module) -> bool:
    return any("scales" in module for _, module in model.named_modules())


def count_elements(model: nn.Module) -> int:
    """How many numbers the model has once unpacked."""
    return sum(
        array.size * 32 // module.bits if name == "weight" and "scales" in module else array.size
        for _, module in model.named_modules()
        for name, array in module.items()
        if isinstance(array, mx.array) and not ("scales" in module and name in ("scales", "biases"))
    )


def dequantize(model: nn.Module, dtype: mx.Dtype) -> None:
    """Swap quantized modules for plain ones; their weights are computed when they are first read."""
    quantized = [(name, module) for name, module in model.named_modules() if has_plain_form(module)]
    plain = [(name, unpacked(module, dtype)) for name, module in quantized]
    model.update_modules(tree_unflatten(plain))


def quantize(model: nn.Module, bits: int) -> None:
    """Swap plain modules for quantized ones; their weights are computed when they are first read. What an architecture
    wants to have treated otherwise, say its routers, stays as it is.
    """
    usual = getattr(model, "quant_predicate", None) or (lambda path, module: True)

    def fitting(path: str, module: nn.Module) -> bool:
        packed = hasattr(module, "to_quantized") and not isinstance(module, MultiLinear)
        return packed and module.weight.shape[-1] % PACK_GROUP == 0 and usual(path, module) is True

    nn.quantize(model, group_size=PACK_GROUP, bits=bits, class_predicate=fitting)


def kept_plain(model: nn.Module) -> set[int]:
    """The ids of the layers that an architecture wants to have as they are: it may read their weights itself."""
    usual = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    return {id(module) for path, module in model.named_modules() if "weight" in module and not usual(path, module)}


def has_plain_form(module: Any) -> bool:
    return isinstance(module, nn.Module) and converted(type(module), PLAIN_FORMS) is not None


def unpacked(module: nn.Module, dtype: mx.Dtype) -> nn.Module:
    """The plain form of a quantized module."""
    kind = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    scale = module.get("global_scale")
    if scale is not None and scale.ndim:  # one for each expert
        parts = zip(module.weight, module.scales, scale, strict=True)
        weight = mx.stack([mx.dequantize(part, own, global_scale=one, **kind) for part, own, one in parts])
    else:
        weight = mx.dequantize(module.weight, module.scales, module.get("biases"), global_scale=scale, **kind)
    weight = weight.astype(dtype)
    plain = blank(converted(type(module), PLAIN_FORMS))
    plain.weight = weight
    if "bias" in module:
        plain.bias = module.bias
    return plain


def blank(form: type) -> Any:
    """A module of this class without anything that its own __init__ would make."""
    made: Any = dict.__new__(form)
    nn.Module.__init__(made)
    return made
