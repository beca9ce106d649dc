"""Classes that stand in front of a module's own, and what becomes of both when the module takes another form.

A module keeps its parameters' names, its attributes and its type. What a class in front must know is part of the class,
not of the instance: unpacking a quantized layer makes a new instance, and that one must behave alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache as memoize
from typing import Any

import mlx.nn as nn

Table = Mapping[type, type]
"""Which class stands for which in another form, say unpacked."""


def become(module: nn.Module, front: type, **constants: Any) -> None:
    """Put `front` in front of the module's class."""
    own: Any = type(module)
    module.__class__ = _in_front(front, own, tuple(sorted(constants.items())))


def innermost(cls: type) -> type:
    """The class behind everything that was put in front of it."""
    made = _made_of(cls)
    return innermost(made[1]) if made else cls


def converted(cls: type, table: Table) -> Any:
    """The class of another form with the same classes in front; None where the table has none."""
    if cls in table:
        return table[cls]
    made = _made_of(cls)
    if made is None:
        return None
    front, behind, constants = made
    into = converted(behind, table)
    return None if into is None else _in_front(front, into, constants)


def put_behind(module: nn.Module, front: type) -> None:
    """Put `front` in front of the module's innermost class, behind whatever stands there already."""
    own = innermost(type(module))
    module.__class__ = converted(type(module), {own: _in_front(front, own, ())})


def _made_of(cls: type) -> tuple[type, type, tuple[tuple[str, Any], ...]] | None:
    return cls.__dict__.get("_made_of")


@memoize
def _in_front(front: type, behind: Any, constants: tuple[tuple[str, Any], ...]) -> Any:
    known = {"__module__": behind.__module__, "_made_of": (front, behind, constants), **dict(constants)}
    return type(behind.__name__, (front, behind), known)
