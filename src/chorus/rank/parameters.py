"""Which parameters of a model stay on a stage.

Outside the layers, the model itself says where it uses a parameter: one forward that computes nothing (arrays are
lazy and the layers passed by) shows what is read before the layers and what after them. What a stage does not need
stays reachable by name, so the forward still runs, but leaves the module tree and holds no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn

Key = tuple[int, str]
"""A parameter: the id of the module that owns it, and its name there."""


class Placeholders:
    """Arrays with a shape and no contents. They read as NaN, so that one that ever reached a result would show."""

    def __init__(self) -> None:
        self._made: list[tuple[dict[str, Any], str]] = []
        self._dtype: mx.Dtype | None = None

    def replace(self, holder: dict[str, Any], name: str) -> None:
        holder[name] = _empty_like(holder[name], holder[name].dtype)
        self._made.append((holder, name))

    def match(self, dtype: mx.Dtype) -> None:
        """Models derive dtypes from their embedding's output: make it look as the activations do."""
        if self._dtype is not None and dtype == self._dtype:
            return
        self._dtype = dtype
        for holder, name in self._made:
            if mx.issubdtype(holder[name].dtype, mx.floating):
                holder[name] = _empty_like(holder[name], dtype)


def hide_contents(module: nn.Module, placeholders: Placeholders) -> None:
    """Take everything below `module` out of the tree; attribute access goes on working."""
    for name in list(module):
        _hide(module, name, placeholders)


def keep_only(root: nn.Module, wanted: Callable[[Key], bool], beside: set[int], placeholders: Placeholders) -> None:
    """Hide every parameter that is not wanted, except in the modules `beside` (the layers)."""
    if not any(modules_in(root.values())):
        # A part of a single operation (a bias that was not read) says nothing: it stays or goes with the whole.
        return
    for name, child in list(root.items()):
        keys = list(_parameters(root, name, beside))
        if keys and not any(map(wanted, keys)) and not _holds_any(child, beside):
            _hide(root, name, placeholders)
            continue
        for module in modules_in(child):
            if id(module) not in beside:
                keep_only(module, wanted, beside, placeholders)


class Witness:
    """Notes which parameters are read while the model runs, and whether the layers had been passed."""

    def __init__(self, root: nn.Module, beside: set[int]) -> None:
        self.before: set[Key] = set()
        self.after: set[Key] = set()
        self.passed_layers = False
        self._modules = list(_tree(root, beside))

    def __enter__(self) -> Witness:
        self._saved = [(module, type(module), dict(module), dict(vars(module))) for module in self._modules]
        for module, cls, _, _ in self._saved:
            object.__setattr__(module, "_witness", self)
            module.__class__ = _observed(cls)
        return self

    def __exit__(self, *_: object) -> None:
        # The forward may have stored something made from parameters that are not loaded yet.
        for module, cls, entries, attributes in self._saved:
            module.__class__ = cls
            dict.clear(module)
            dict.update(module, entries)
            vars(module).clear()
            vars(module).update(attributes)
        # What a module holds now may be replaced later, and must not be held here then.
        self._saved.clear()
        self._modules.clear()

    def note(self, module: nn.Module, name: str) -> None:
        (self.after if self.passed_layers else self.before).add((id(module), name))


def _observed(cls: type) -> type:
    def get(self: Any, name: str, default: Any = None) -> Any:
        self._witness.note(self, name)
        return dict.get(self, name, default)

    def getitem(self: Any, name: str) -> Any:
        self._witness.note(self, name)
        return dict.__getitem__(self, name)

    return type(cls.__name__, (cls,), {"get": get, "__getitem__": getitem})


def _hide(module: nn.Module, name: str, placeholders: Placeholders) -> None:
    child = vars(module)[name] = module.pop(name)
    if isinstance(child, mx.array):
        placeholders.replace(vars(module), name)
    for inner in modules_in(child):
        for below in _tree(inner, set()):
            for key in [key for key, value in below.items() if isinstance(value, mx.array)]:
                placeholders.replace(below, key)


def _empty_like(array: mx.array, dtype: mx.Dtype) -> mx.array:
    nothing = float("nan") if mx.issubdtype(dtype, mx.floating) else 0
    return mx.broadcast_to(mx.array(nothing, dtype), array.shape)


def _parameters(module: nn.Module, name: str, beside: set[int]) -> Iterator[Key]:
    """The parameters at or below one entry of a module. An underscore marks an array that is not one."""
    value = module[name]
    if isinstance(value, mx.array) and not name.startswith("_"):
        yield id(module), name
    for inner in modules_in(value):
        for below in _tree(inner, beside):
            for key, array in below.items():
                if isinstance(array, mx.array) and not key.startswith("_"):
                    yield id(below), key


def _tree(root: nn.Module, beside: set[int]) -> Iterator[nn.Module]:
    if id(root) in beside:
        return
    yield root
    for value in root.values():
        for module in modules_in(value):
            yield from _tree(module, beside)


def modules_in(value: Any) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, dict):
        yield from modules_in(value.values())
    elif not isinstance(value, str | mx.array) and isinstance(value, Iterable):
        for item in value:
            yield from modules_in(item)


def _holds_any(value: Any, beside: set[int]) -> bool:
    return any(
        id(module) in beside or any(_holds_any(child, beside) for child in module.values())
        for module in modules_in(value)
    )
