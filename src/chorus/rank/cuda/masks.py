"""What the masks of batches mean: a model hands on the very array that a cache has made, so that whoever is given it
may know its rows' lengths without reading it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

MOST_KEPT = 16
"""A model asks for a mask for each kind of its layers; who keeps one longer computes with the array itself."""


class RowLengths(Protocol):
    """How long the rows of a batch are."""

    values: tuple[int, ...]
    longest: int

    @property
    def array(self) -> mx.array: ...


@dataclass(frozen=True)
class Meaning:
    """The last `queries` tokens of each row look at their row up to themselves, and at no more than `window` places."""

    lengths: RowLengths
    """Of the rows, these tokens included."""
    queries: int
    window: int = 0
    """0: from the beginning on."""


_known: OrderedDict[int, tuple[mx.array, Meaning]] = OrderedDict()
"""By identity, which is a mask's own only for as long as it is held here."""


def note(mask: mx.array, meaning: Meaning) -> mx.array:
    """The same mask, whose meaning is known from now on."""
    _known[id(mask)] = (mask, meaning)
    while len(_known) > MOST_KEPT:
        _known.popitem(last=False)
    return mask


def meaning(mask: object) -> Meaning | None:
    """None for a mask that is not known as it is: somebody else's, or changed on its way."""
    found = _known.get(id(mask))
    return found[1] if found else None
