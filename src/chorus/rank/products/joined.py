"""MLX's own layers that are given the same input become one product: their matrices lie one below the other in one
array, and what each of them holds are views of its own rows there.

A product of few rows costs a GPU little more than its launch: what counts is how many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.platform.accelerator.device import Backend
from chorus.rank.products.shared import Shared, foreign_columns, likely_together, sizes_of
from chorus.rank.upstream.forms import innermost, put_behind
from chorus.rank.upstream.weights import QuantizedSwitchLinear, SwitchLinear

Arrays = Mapping[str, mx.array]
Product = Callable[..., mx.array]
Products = Callable[..., Any]
"""A list of them. (For what splits an array, the library tells that it makes one.)"""
Run = tuple[int, int]
"""Neighbours: the place of the first, and that behind the last."""

_AXES = {"weight": -2, "scales": -2, "biases": -2, "bias": -1}
"""What a layer may hold, and along which axis its outputs lie."""


def pays(backend: Backend) -> bool:
    """Whether fewer and larger products are quicker there. A CPU reads the same weights either way, and what a product
    costs beside that is little.
    """
    return backend != "cpu"


def join_products(model: nn.Module) -> None:
    """Join what can be. Only the graph changes: an array is made when one of its rows is first read, and then its parts
    go.
    """
    for _, module in model.named_modules():
        for layers in _groups(module):
            _join(layers)


class JoinedLayer:
    """In front of a layer's own class. A low-rank part that only this layer has would be added here, to what the layer
    takes of the shared product: its input is at hand.
    """

    shared: Shared
    place: int


class JoinedLinear(JoinedLayer):
    def __call__(self, x: mx.array) -> mx.array:
        return self.shared.product(self.place, x)


class JoinedExperts(JoinedLayer):
    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        return self.shared.product(self.place, x, indices, sorted_indices)


class Joined:
    """What several layers multiply with. Whichever of them are wanted, neighbours are one product."""

    def __init__(self, arrays: Arrays, rows: Sequence[int], product: Callable[[Arrays], Product]) -> None:
        self._arrays = arrays
        self._edges = [0, *accumulate(rows)]
        self._product = product
        self._products: dict[Sequence[int], list[Products]] = {}

    def __call__(self, places: tuple[int, ...], *given: Any) -> list[mx.array]:
        if (products := self._products.get(places)) is None:
            products = self._products[places] = [self._products_of(run) for run in runs(places)]
        if len(products) == 1:
            return products[0](*given)
        return [made for several in products for made in several(*given)]

    def rows(self, run: Run) -> dict[str, mx.array]:
        """What the layers of a run have of each array."""
        own = slice(*(self._edges[place] for place in run))
        return {
            name: array[..., own, :] if _AXES[name] == -2 else array[..., own] for name, array in self._arrays.items()
        }

    def _products_of(self, run: Run) -> Products:
        start, *inner = self._edges[slice(*run)]
        product = self._product(self.rows(run))
        if not inner:
            return lambda *given: [product(*given)]
        # With a first cut at 0 MLX takes slices. The parts of its split do not know how far they reach, and CUDA's
        # rotation would write beyond a buffer that is as long as they say.
        cuts = [0, *(edge - start for edge in inner)]
        return lambda *given: mx.split(product(*given), cuts, axis=-1)[1:]


def runs(places: Sequence[int]) -> Iterator[Run]:
    """The neighbours among places that are in order."""
    first = [place for place in places if place - 1 not in places]
    behind = [place + 1 for place in places if place + 1 not in places]
    return zip(first, behind, strict=True)


def _groups(module: nn.Module) -> Iterator[list[Any]]:
    """The module's own layers that are likely to be given the same, and can be one product."""
    own = {name: child for name, child in module.items() if isinstance(child, nn.Module)}
    ends = not any(innermost(type(child)) in _SUMMED for child in own.values())
    for front in (JoinedLinear, JoinedExperts):
        layers = {name: child for name, child in own.items() if (form := _form(child)) and form.front is front}
        for names in likely_together({name: sizes_of(layer) for name, layer in layers.items()}, ends):
            alike: defaultdict[Hashable, list[Any]] = defaultdict(list)
            for layer in (layers[name] for name in names):
                if _joinable(layer):
                    alike[_kind(layer)].append(layer)
            yield from (found for found in alike.values() if len(found) > 1)


def _join(layers: Sequence[Any]) -> None:
    form, settings = _FORMS[innermost(type(layers[0]))], _settings(layers[0])
    arrays = {
        name: mx.concatenate([layer[name] for layer in layers], axis)
        for name, axis in _AXES.items()
        if name in layers[0]
    }
    joined = Joined(arrays, [layer.weight.shape[-2] for layer in layers], lambda own: form.product(own, settings))
    shared = Shared(len(layers), joined)
    for place, layer in enumerate(layers):
        layer.update(joined.rows((place, place + 1)))
        put_behind(layer, form.front)
        vars(layer).update(shared=shared, place=place)


def _joinable(layer: nn.Module) -> bool:
    """One with foreign columns pads its input, one with a scale for the whole matrix cannot share it."""
    return not isinstance(layer, JoinedLayer) and foreign_columns(layer) == (0, 0) and "global_scale" not in layer


def _kind(layer: nn.Module) -> Hashable:
    """What must be equal in layers that are joined."""
    arrays = {name: array.dtype for name, array in layer.items() if isinstance(array, mx.array)}
    return tuple(sorted(_settings(layer).items())), tuple(sorted(arrays.items(), key=lambda one: one[0]))


def _settings(layer: Any) -> dict[str, Any]:
    if "scales" not in layer:
        return {}
    return {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}


def _form(layer: nn.Module) -> _Form | None:
    return _FORMS.get(innermost(type(layer)))


def _linear(own: Arrays, _: Mapping[str, Any]) -> Product:
    matrix, bias = own["weight"].T, own.get("bias")
    return (lambda x: x @ matrix) if bias is None else (lambda x: mx.addmm(bias, x, matrix))


def _quantized_linear(own: Arrays, settings: Mapping[str, Any]) -> Product:
    matrix, bias = (own["weight"], own["scales"], own.get("biases")), own.get("bias")

    def product(x: mx.array) -> mx.array:
        made = mx.quantized_matmul(x, *matrix, transpose=True, **settings)
        return made if bias is None else made + bias

    return product


def _experts(own: Arrays, _: Mapping[str, Any]) -> Product:
    matrices, bias = own["weight"].swapaxes(-1, -2), own.get("bias")

    def product(x: mx.array, indices: mx.array, in_order: bool) -> mx.array:
        made = mx.gather_mm(x, matrices, rhs_indices=indices, sorted_indices=in_order)
        return made if bias is None else made + mx.expand_dims(bias[indices], -2)

    return product


def _quantized_experts(own: Arrays, settings: Mapping[str, Any]) -> Product:
    matrices, bias = (own["weight"], own["scales"], own.get("biases")), own.get("bias")

    def product(x: mx.array, indices: mx.array, in_order: bool) -> mx.array:
        made = mx.gather_qmm(x, *matrices, rhs_indices=indices, transpose=True, sorted_indices=in_order, **settings)
        return made if bias is None else made + mx.expand_dims(bias[indices], -2)

    return product


@dataclass(frozen=True)
class _Form:
    """What stands in front of a layer that is joined, and what multiplies for all of them."""

    front: type[JoinedLayer]
    product: Callable[[Arrays, Mapping[str, Any]], Product]


_FORMS = {
    nn.Linear: _Form(JoinedLinear, _linear),
    nn.AllToShardedLinear: _Form(JoinedLinear, _linear),
    nn.QuantizedLinear: _Form(JoinedLinear, _quantized_linear),
    nn.QuantizedAllToShardedLinear: _Form(JoinedLinear, _quantized_linear),
    SwitchLinear: _Form(JoinedExperts, _experts),
    QuantizedSwitchLinear: _Form(JoinedExperts, _quantized_experts),
}
"""Which of MLX's layers can be joined. What the ranks sum is no one's here."""
_SUMMED = (nn.ShardedToAllLinear, nn.QuantizedShardedToAllLinear)
