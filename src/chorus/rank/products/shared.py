"""Layers that are given the same input: which they may be, and how one product serves them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import mlx.core as mx
import mlx.nn as nn

Compute = Callable[..., Sequence[mx.array]]
"""Of the places that are wanted and what the layers there are given, the product of each place."""


class Shared:
    """The products of layers that are given the same input, computed together by whichever of them is asked first.

    Whether they are is seen as they run: a layer that turns out to have an input of its own, or not to be asked, is
    computed alone from then on.
    """

    def __init__(self, count: int, compute: Compute) -> None:
        self._compute = compute
        self._together = tuple(range(count))
        self._input: mx.array | None = None
        self._beside: tuple[Any, ...] = ()
        self._waiting: dict[int, mx.array] = {}

    def product(self, place: int, x: mx.array, *beside: Any) -> mx.array:
        """`beside` is what else the layer is given: to share, it must be the same too."""
        waiting = self._waiting
        if waiting and (x is not self._input or (beside and not all(map(is_, beside, self._beside)))):
            self._together = tuple(other for other in self._together if other not in waiting)
            waiting.clear()
        if not waiting and place in self._together and len(self._together) > 1:
            self._input, self._beside = x, beside
            waiting.update(zip(self._together, self._compute(self._together, x, *beside), strict=True))
        found = waiting.pop(place, None)
        if not waiting:
            self._input, self._beside = None, ()
        return self._compute((place,), x, *beside)[0] if found is None else found


@dataclass(frozen=True)
class Sizes:
    """How wide the rows are that a layer takes, and those it gives."""

    takes: int
    gives: int


def sizes_of(layer: nn.Module) -> Sizes:
    takes = layer.scales.shape[-1] * layer.group_size if "scales" in layer else layer.weight.shape[-1]
    return Sizes(takes - sum(foreign_columns(layer)), layer.weight.shape[-2])


def foreign_columns(layer: nn.Module) -> tuple[int, int]:
    """How many columns at its ends a layer has that are not its own: it is given zeros for them."""
    return getattr(type(layer), "foreign", (0, 0))


def likely_together(layers: Mapping[str, Sizes], ends: bool) -> list[list[str]]:
    """Layers of a module that take equally wide rows are likely to be given the same; not the one that it `ends` with,
    for that is given what the others have made: the last that gives rows as wide as the module's own. This only saves
    work: whether they are is seen when they run.
    """
    width = next(iter(layers.values())).takes if layers else 0
    giving = [name for name, sizes in layers.items() if sizes.gives == width]
    alone = giving[-1:] if ends else []
    by_width: defaultdict[int, list[str]] = defaultdict(list)
    for name, sizes in layers.items():
        if name not in alone:
            by_width[sizes.takes].append(name)
    return [*by_width.values(), *([alone] if alone else [])]
