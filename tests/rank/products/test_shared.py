"""Which layers are tried together, by their sizes alone."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from chorus.rank.products.shared import Shared, Sizes, likely_together, sizes_of
from chorus.rank.tensor.modules import Padded
from chorus.rank.upstream.forms import become


@pytest.mark.parametrize(
    ("layers", "together"),
    [
        ({"q": (64, 64), "k": (64, 32), "v": (64, 32), "o": (64, 64)}, ["q", "k", "v"]),
        ({"q": (64, 128), "k": (64, 32), "v": (64, 32), "o": (128, 64)}, ["q", "k", "v"]),
        ({"gate": (64, 96), "up": (64, 96), "down": (96, 64)}, ["gate", "up"]),
        ({"gate": (64, 96), "down": (96, 64), "up": (64, 96)}, ["gate", "up"]),
        ({"q_a": (64, 24), "q_b": (24, 96), "kv_a": (64, 40), "o": (96, 64)}, ["q_a", "kv_a"]),
        ({"router": (64, 8), "shared_gate": (64, 1)}, ["router", "shared_gate"]),
        # One rank's heads, and its part of the inner width.
        ({"q": (64, 32), "k": (64, 16), "v": (64, 16), "o": (32, 64)}, ["q", "k", "v"]),
        ({"gate": (64, 31), "up": (64, 31), "down": (31, 64)}, ["gate", "up"]),
    ],
)
def test_what_takes_the_modules_width_is_tried_together_but_not_what_the_module_ends_with(
    layers: dict[str, tuple[int, int]], together: list[str]
) -> None:
    groups = likely_together({name: Sizes(*sizes) for name, sizes in layers.items()}, ends=True)
    assert together in groups
    assert sorted(name for group in groups for name in group) == sorted(layers)


def test_where_another_layer_ends_the_module_all_are_tried() -> None:
    square = {name: Sizes(64, 64) for name in "qkv"}
    assert likely_together(square, ends=False) == [["q", "k", "v"]]
    assert likely_together(square, ends=True) == [["q", "k"], ["v"]]
    assert likely_together({}, ends=True) == []


def test_sizes_are_what_a_layer_is_given_and_gives() -> None:
    layer = nn.Linear(64, 24)
    assert sizes_of(layer) == sizes_of(layer.to_quantized(group_size=32, bits=4)) == Sizes(64, 24)
    become(layer, Padded, foreign=(3, 9))
    assert sizes_of(layer) == Sizes(52, 24)


def test_what_else_a_layer_is_given_must_be_the_same_too() -> None:
    computed: list[tuple[int, ...]] = []

    def compute(places: tuple[int, ...], x: mx.array, choice: mx.array) -> list[mx.array]:
        computed.append(places)
        return [x * choice + place for place in places]

    shared, x, one, other = Shared(2, compute), mx.array(2.0), mx.array(3.0), mx.array(5.0)
    assert [shared.product(place, x, one).item() for place in (0, 1)] == [6, 7]
    assert computed == [(0, 1)]
    assert [shared.product(0, x, one).item(), shared.product(1, x, other).item()] == [6, 11]
    assert computed == [(0, 1), (0, 1), (1,)]
