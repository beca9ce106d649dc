"""The one door to mlx-lm's internals.

Caches and model classes were rewritten upstream before and will be again: everything the rest of Chorus uses of them
passes through here, so that a new upstream version is one file to read.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import mlx.nn as nn
import mlx_lm.models
from mlx_lm.models.cache import (
    ArraysCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    create_attention_mask,
    make_prompt_cache,
)
from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

from chorus.errors import ChorusError
from chorus.models.architectures import why_unknown

__all__ = [
    "ArraysCache",
    "BatchRotatingKVCache",
    "CacheList",
    "ChunkedKVCache",
    "KVCache",
    "RotatingKVCache",
    "UnknownArchitecture",
    "architecture_module",
    "architecture_name",
    "build",
    "create_attention_mask",
    "defining_modules",
    "leaves",
    "make_prompt_cache",
    "module_names",
    "module_of",
]

_PACKAGE = mlx_lm.models.__name__


class UnknownArchitecture(ChorusError, ValueError):
    """The installed mlx-lm has no module for this model type."""


def leaves(cache: Iterable[Any]) -> Iterator[Any]:
    """The caches that hold arrays themselves, whatever they are listed in."""
    for entry in cache:
        if isinstance(entry, CacheList):
            yield from leaves(entry.caches)
        else:
            yield entry


def architecture_name(config: Mapping[str, Any]) -> str:
    """The name of the mlx-lm module that implements this configuration."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture("config.json names no model_type: is this a model folder?")
    named = config.get("architectures") or ()
    for architecture in (named,) if isinstance(named, str) else named:
        if remapped := MODEL_ARCHITECTURE_REMAPPING.get((model_type, architecture)):
            return str(remapped)
    return str(MODEL_REMAPPING.get(model_type, model_type))


def architecture_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{_PACKAGE}.{name}":
            raise
        raise UnknownArchitecture(why_unknown(name)) from None


def build(config: Mapping[str, Any]) -> nn.Module:
    """The model of a configuration, its parameters not yet evaluated."""
    module = architecture_module(architecture_name(config))
    return module.Model(module.ModelArgs.from_dict(dict(config)))


def module_names() -> list[str]:
    """Every file of mlx_lm.models, architectures and helpers alike."""
    return sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))


def module_of(instance: object) -> ModuleType:
    """The module that defines an object's class, for helpers that upstream keeps beside it."""
    return sys.modules[type(instance).__module__]


def defining_modules(decoder: nn.Module) -> list[str]:
    """The names of the modules that define a decoder's class and its base classes, its own first."""
    return [base.__module__.rpartition(".")[2] for base in type(decoder).__mro__]
