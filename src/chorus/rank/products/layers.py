"""Quantized layers of MLX whose products the kernels compute. Each call crosses from MLX to the kernel and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.rank.products.packing import Floats, Packed, pack

Product = Callable[[Floats], Floats]


def packed_weights(layer: nn.Module) -> Packed | None:
    """The matrix of a quantized layer, read now; None where the kernels cannot hold it."""
    biases = layer.get("biases")
    return pack(
        np.array(layer.weight),
        _plain(layer.scales),
        None if biases is None else _plain(biases),
        bits=layer.bits,
        block=layer.group_size,
        mode=layer.mode,
    )


def bias_of(layer: nn.Module) -> Floats | None:
    return _plain(layer.bias) if "bias" in layer else None


class PackedLinear(nn.Module):
    """In place of a QuantizedLinear. It has no parameters: the kernel holds them."""

    def __init__(self, product: Product, width: int) -> None:
        super().__init__()
        self._product = product
        self._width = width

    def __call__(self, x: mx.array) -> mx.array:
        return cross(self._product, x, self._width)


class Joined:
    """Products of layers that are given the same input, computed together by whichever of them is asked first."""

    def __init__(self, product: Product, width: int, rows: Sequence[int]) -> None:
        self._product = product
        self._width = width
        self._ends = np.cumsum(rows)[:-1].tolist()
        self._input: mx.array | None = None
        self._waiting: dict[int, mx.array] = {}

    def part(self, place: int, x: mx.array) -> mx.array:
        if self._input is not x or place not in self._waiting:
            parts = mx.split(cross(self._product, x, self._width), self._ends, axis=-1)
            self._input, self._waiting = x, dict(enumerate(parts))
        found = self._waiting.pop(place)
        if not self._waiting:
            self._input = None
        return found


class JoinedLinear(nn.Module):
    """One of the layers of a Joined."""

    def __init__(self, joined: Joined, place: int) -> None:
        super().__init__()
        self._joined = joined
        self._place = place

    def __call__(self, x: mx.array) -> mx.array:
        return self._joined.part(self._place, x)


def cross(product: Product, x: mx.array, width: int) -> mx.array:
    """Computes x, whatever it still waits for."""
    rows = np.array(x.astype(mx.float32).reshape(-1, width), copy=False)
    return mx.array(product(rows)).reshape(*x.shape[:-1], -1)


def _plain(array: mx.array) -> Any:
    """For numpy, which has no bfloat16; what is no float is left as it is."""
    return np.array(array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array)
