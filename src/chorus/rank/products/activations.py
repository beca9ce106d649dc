"""What MLPs do between their products, each told twice: as numbers, to recognise it, and as nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chorus.rank.products.kernels import Combine
from chorus.rank.products.packing import Floats


@dataclass(frozen=True)
class Between:
    name: str
    compute: Callable[[Sequence[Floats]], Floats]
    build: Combine


def _sigmoid(x: Any) -> Any:
    return np.float32(1) / (1 + np.exp(-x))


def _erf(x: Floats) -> Floats:
    return np.vectorize(math.erf)(x).astype(np.float32)


def _gelu_tanh(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _fast_gelu(graph: Any, x: str) -> str:
    return graph.one("Mul", x, graph.one("Sigmoid", graph.one("Mul", x, graph.number(1.702))))


def _squared(graph: Any, x: str) -> str:
    above = graph.one("Relu", x)
    return graph.one("Mul", above, above)


@dataclass(frozen=True)
class _Activation:
    compute: Callable[[Floats], Floats]
    build: Callable[[Any, str], str]


_ACTIVATIONS = {
    "silu": _Activation(lambda x: x * _sigmoid(x), lambda graph, x: graph.one("Mul", x, graph.one("Sigmoid", x))),
    "gelu": _Activation(lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), lambda graph, x: graph.one("Gelu", x)),
    "gelu (tanh)": _Activation(_gelu_tanh, lambda graph, x: graph.one("Gelu", x, approximate="tanh")),
    "gelu (sigmoid)": _Activation(lambda x: x * _sigmoid(1.702 * x), _fast_gelu),
    "relu": _Activation(lambda x: np.maximum(x, 0), lambda graph, x: graph.one("Relu", x)),
    "relu squared": _Activation(lambda x: np.maximum(x, 0) ** 2, _squared),
}


def _gated(name: str, activation: _Activation) -> Between:
    return Between(
        f"gated {name}",
        lambda parts: activation.compute(parts[0]) * parts[1],
        lambda graph, parts: graph.one("Mul", activation.build(graph, parts[0]), parts[1]),
    )


def _plain(name: str, activation: _Activation) -> Between:
    return Between(
        name, lambda parts: activation.compute(parts[0]), lambda graph, parts: activation.build(graph, parts[0])
    )


# gpt-oss: both sides are clipped, and one is added to what is gated.
_CLIP, _STEEP = 7.0, 1.702


def _clipped(parts: Sequence[Floats]) -> Floats:
    gate, up = np.minimum(parts[0], np.float32(_CLIP)), np.clip(parts[1], -_CLIP, _CLIP)
    return gate * _sigmoid(_STEEP * gate) * (up + 1)


def _build_clipped(graph: Any, parts: Sequence[str]) -> str:
    most, least = graph.number(_CLIP), graph.number(-_CLIP)
    gate, up = graph.one("Min", parts[0], most), graph.one("Clip", parts[1], least, most)
    return graph.one("Mul", _fast_gelu(graph, gate), graph.one("Add", up, graph.number(1.0)))


BETWEEN_TWO = (
    *(_gated(name, activation) for name, activation in _ACTIVATIONS.items()),
    Between("gated clipped silu", _clipped, _build_clipped),
)
"""Of a gate and what it opens."""
BETWEEN_ONE = tuple(_plain(name, activation) for name, activation in _ACTIVATIONS.items())
"""Of one product."""


def halves(between: Between, swapped: bool) -> Between:
    """Of a gate and what it opens that come as one product."""

    def compute(parts: Sequence[Floats]) -> Floats:
        pair = np.split(parts[0], 2, axis=-1)
        return between.compute(pair[::-1] if swapped else pair)

    def build(graph: Any, parts: Sequence[str]) -> str:
        pair = graph.node("Split", parts[0], outputs=2, axis=-1, num_outputs=2)
        return between.build(graph, pair[::-1] if swapped else pair)

    return Between(f"{between.name}, in one product", compute, build)
