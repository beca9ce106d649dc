"""Tiny random models, such that a layer that is left out or wired wrongly shows in the logits."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes

from .shared import Config

# Far enough from a constant that each entry matters, near enough that no activation grows without bound.
_SPREAD = 0.1


def build_config(config: Config, seed: int = 0, dtype: mx.Dtype = mx.float32) -> nn.Module:
    """A model of this configuration with random parameters, evaluated."""
    model = instantiate(config, seed, dtype)
    parameters = tree_flatten(model.parameters())
    # One wait for all parameters instead of one for each.
    random = [is_random(name, value) for name, value in parameters]
    mx.eval(random, model.parameters())
    drawn = [
        (name, value if fits.item() else _drawn(name, value, seed))
        for (name, value), fits in zip(parameters, random, strict=True)
    ]
    model.update(tree_unflatten(drawn))
    mx.eval(model.parameters())
    return model


def instantiate(config: Config, seed: int, dtype: mx.Dtype) -> nn.Module:
    """The model as upstream initialises it. Nothing is computed yet, so it takes no memory whatever its size."""
    mx.random.seed(seed)
    # Several argument classes write into the dictionary that they are given.
    config = copy.deepcopy(config)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    model.set_dtype(dtype)
    return model.eval()


def lively(name: str, value: mx.array, seed: int) -> mx.array:
    """The parameter itself when it is random already; a random one around its constant when it is not.

    Upstream fills gates, sinks, biases and router weights with zeros and norms with ones, because a checkpoint
    overwrites them. Left so, whole layers would add nothing and every layer would look like its neighbour. What is
    drawn depends on the name and the seed only, not on the parameters that came before.
    """
    return value if is_random(name, value).item() else _drawn(name, value, seed)


def is_random(name: str, value: mx.array) -> mx.array:
    """Whether a parameter can stay as upstream initialises it."""
    if name.endswith(".signs") or value.size == 0:
        return mx.array(value.size == 0)
    first = value.reshape(-1)[0]
    varies = mx.any(value != first)
    return varies if mx.issubdtype(value.dtype, mx.floating) else varies | (first != 0)


def _drawn(name: str, value: mx.array, seed: int) -> mx.array:
    key = mx.random.key(zlib.crc32(f"{seed} {name}".encode()))
    if name.endswith(".signs"):
        return mx.where(mx.random.bernoulli(0.5, value.shape, key), -1, 1).astype(value.dtype)
    if mx.issubdtype(value.dtype, mx.floating):
        return value + (_SPREAD * mx.random.normal(value.shape, key=key)).astype(value.dtype)
    return mx.random.randint(0, 2**31 - 1, value.shape, key=key).astype(value.dtype)


def single_cache(model: nn.Module) -> list[Any]:
    """The caches of one sequence, as upstream makes them."""
    return make_prompt_cache(model)
