"""Recognises MLPs that can be one graph, by watching what they do with their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.rank.products.activations import BETWEEN_ONE, BETWEEN_TWO, Between, halves
from chorus.rank.products.packing import Floats
from chorus.rank.products.shared import Sizes
from chorus.rank.upstream.forms import innermost

_SPREADS = np.array([[1], [6], [1000]], np.float32)
"""Of the rows of known numbers. Near zero activations differ most; far from it clipping shows, wherever it begins."""
_ROWS = len(_SPREADS)
_CLOSE = 1e-4


@dataclass(frozen=True)
class Mlp:
    """Which layers an MLP multiplies with first, what it does with the products, and with which it multiplies last."""

    inner: tuple[str, ...]
    between: Between
    last: str


def recognise(module: nn.Module, layers: Mapping[str, Sizes], *arguments: Any) -> Mlp | None:
    """Run the module's own forward on (x, *arguments) with stand-ins for its layers that give known numbers, and see
    whether what it does is known; None where it is not.
    """
    if not 2 <= len(layers) <= 3:
        return None
    for last, inner in _roles(layers):
        random = np.random.default_rng(0)
        watched = {name: _Watched(_random(random, layers[name].gives)) for name in layers}
        x = _random(random, layers[inner[0]].takes)
        made = _run_with(module, watched, x, arguments)
        if made is None or not _same(made, watched[last].gives):
            continue
        if not all(len(w.given) == 1 for w in watched.values()):
            continue
        if not all(_same(watched[name].given[0], x) for name in inner):
            continue
        for order in permutations(inner):
            found = _between([watched[name].gives for name in order], watched[last].given[0])
            if found:
                return Mlp(order, found, last)
    return None


def _roles(layers: Mapping[str, Sizes]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Which layer may be the last, by their sizes."""
    for last in layers:
        inner = tuple(name for name in layers if name != last)
        first, end = layers[inner[0]], layers[last]
        alike = all(layers[name] == first for name in inner)
        wide = first.gives in ((end.takes, 2 * end.takes) if len(inner) == 1 else (end.takes,))
        if alike and wide and end.gives == first.takes:
            yield last, inner


def _between(parts: Sequence[Floats], found: Floats) -> Between | None:
    if len(parts) == 2:
        known: Sequence[Between] = BETWEEN_TWO
    elif parts[0].shape[-1] == found.shape[-1]:
        known = BETWEEN_ONE
    else:
        known = [halves(between, swapped) for between in BETWEEN_TWO for swapped in (False, True)]
    with np.errstate(over="ignore"):  # of the exponential of a thousand, which is meant
        return next((between for between in known if _close(between.compute(parts), found)), None)


class _Watched:
    """In a layer's place: keeps what it is given, gives what it was made with."""

    def __init__(self, gives: Floats) -> None:
        self.gives = gives
        self.given: list[Floats] = []

    def __call__(self, x: mx.array, *_: Any, **__: Any) -> mx.array:
        self.given.append(np.array(x.astype(mx.float32)).reshape(_ROWS, -1))
        return mx.array(self.gives).reshape(*x.shape[:-1], -1)


def _run_with(module: nn.Module, watched: Mapping[str, _Watched], x: Floats, arguments: Sequence[Any]) -> Floats | None:
    entries = dict(module)
    for name in watched:
        module.pop(name)
    vars(module).update(watched)
    try:
        made = innermost(type(module)).__call__(module, mx.array(x), *arguments)
        return np.array(made.astype(mx.float32)).reshape(_ROWS, -1) if isinstance(made, mx.array) else None
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # it wants more than an input, looks into its layers, or is a whole model with a stage's layers
    finally:
        for name in watched:
            vars(module).pop(name, None)
        dict.clear(module)
        dict.update(module, entries)


def _random(random: np.random.Generator, width: int) -> Floats:
    return _SPREADS * random.standard_normal((_ROWS, width), np.float32)


def _same(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other))


def _close(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=_CLOSE, atol=_CLOSE))


EXPERT = mx.zeros((_ROWS, 1), mx.int32)
"""The choice of one expert for each row, as modules of experts are given it."""
