"""Packed layers stand for MLX's own: same shapes, same numbers as far as rounded inputs let them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear

from chorus.rank.products.convert import pack_products
from chorus.rank.products.kernels import Kernel, Matrix, linears
from chorus.rank.products.layers import KernelEmbedding, KernelExperts, KernelLinear, KernelMlps, cross, shared_by
from chorus.rank.products.shared import Shared
from chorus.rank.upstream.weights import unpacked
from tests.rank.products.rounding import explained, packed, quantized

WIDTH = 128
NEAR = 0.03
"""Of a vector's length: more than rounding inputs to 8 bits does, far less than anything wrong would."""


class Holder(nn.Module):
    """A module that holds layers and leaves it to the test what is done with them."""

    def __init__(self, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


def random_layer(number: int, rows: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(WIDTH, rows, bias)
    layer.weight = mx.random.normal((rows, WIDTH), key=mx.random.key(number))
    if bias:
        layer.bias = mx.random.normal((rows,), key=mx.random.key(number + 1))
    return layer


def x_of(*shape: int) -> mx.array:
    return mx.random.normal((*shape, WIDTH), key=mx.random.key(sum(shape)))


def near(made: mx.array, expected: mx.array) -> bool:
    off = mx.linalg.norm((made - expected).reshape(-1)) / mx.linalg.norm(expected.reshape(-1))
    return made.shape == expected.shape and off.item() < NEAR


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (2, 3, 4)])
def test_a_linear_layer_gives_what_its_own_would(shape: tuple[int, ...], bias: bool) -> None:
    plain = random_layer(1, 24, bias).to_quantized(group_size=32, bits=4)
    holder = Holder(layer=plain)
    x, matrix = x_of(*shape), packed(plain)
    expected = plain(x)
    pack_products(holder, tied_head=False)
    assert type(holder.layer) is KernelLinear
    assert not holder.layer.parameters()
    made = holder.layer(x)
    assert made.shape == expected.shape
    off = np.abs(np.array(made - expected)).reshape(-1, 24)
    assert (off <= explained(matrix, np.array(x).reshape(-1, WIDTH)) + 1e-5).all()


def test_rows_that_lie_apart_in_memory_are_taken_as_they_are_meant() -> None:
    holder = Holder(layer=random_layer(1, 24).to_quantized(group_size=32, bits=8))
    x = mx.random.normal((WIDTH, 6), key=mx.random.key(3))
    pack_products(holder, tied_head=False)
    for view in (x.T, mx.broadcast_to(x.T[:1], (4, WIDTH)), x.T[::2], mx.expand_dims(x.T, 1)):
        # Sums are added up in another order where numbers begin elsewhere in memory.
        assert mx.allclose(holder.layer(view), holder.layer(mx.contiguous(view)), rtol=0, atol=1e-4).item()


def shared(*rows: int) -> tuple[Shared, list[Kernel], list[int]]:
    """Layers that share, each of them alone, and a list of how many products each crossing has computed."""
    held = [Matrix(quantized(4, 32, "affine", count, WIDTH)) for count in rows]
    kernel, crossings = linears(held), []
    run = kernel._run

    def counted(names: Any, *rest: Any) -> Any:
        crossings.append(len(rows) if names is None else len(names))
        return run(names, *rest)

    kernel._run = counted
    return shared_by(kernel), [linears([matrix]) for matrix in held], crossings


def alone(kernel: Kernel, x: mx.array) -> mx.array:
    return cross(kernel, x, [0])[0]


def test_layers_with_the_same_input_cross_once() -> None:
    together, kernels, crossings = shared(8, 16, 24)
    for number in range(3):
        x = x_of(2, number + 1)
        for place in (2, 0, 1):
            assert mx.array_equal(together.product(place, x), alone(kernels[place], x)).item()
        assert together._input is None, "nothing is kept once all have been asked"
    assert crossings == [3, 3, 3]


def test_a_layer_with_an_input_of_its_own_is_computed_alone_from_then_on() -> None:
    together, kernels, crossings = shared(8, 16, 24)
    for number in range(3):
        x, other = x_of(number + 1), x_of(number + 4)
        for place, given in ((0, x), (2, other), (1, x)):
            assert mx.array_equal(together.product(place, given), alone(kernels[place], given)).item()
    # At first all three are tried; the input of the last tells that neither it nor the one still waiting belongs here.
    assert crossings[0] == 3
    assert set(crossings[1:]) == {1}


def test_a_layer_that_is_never_asked_is_not_computed_again() -> None:
    together, kernels, crossings = shared(8, 16, 24)
    for number in range(3):
        x = x_of(number + 1)
        for place in (0, 1):
            assert mx.array_equal(together.product(place, x), alone(kernels[place], x)).item()
    assert crossings == [3, 2, 2]


def test_a_layer_that_is_asked_twice_gives_the_same_twice() -> None:
    together, kernels, _ = shared(8, 16)
    x = x_of(3)
    for place in (0, 0, 1, 0, 1):
        assert mx.array_equal(together.product(place, x), alone(kernels[place], x)).item()


def test_equal_inputs_that_are_not_the_same_array_are_different_inputs() -> None:
    together, kernels, _ = shared(8, 16)
    first, second = x_of(3), x_of(3) * 2
    assert mx.array_equal(together.product(0, first), alone(kernels[0], first)).item()
    assert mx.array_equal(together.product(1, second), alone(kernels[1], second)).item()


def test_an_embedding_is_looked_up_exactly_and_its_tied_head_is_a_product() -> None:
    tokens, x = mx.array([[3, 95, 0], [7, 7, 1]]), x_of(2, 3)
    for tied in (True, False):
        plain = nn.Embedding(96, WIDTH).to_quantized(group_size=64, bits=4)
        expected, logits = plain(tokens), plain.as_linear(x)
        holder = Holder(embed=plain)
        pack_products(holder, tied_head=tied)
        assert isinstance(holder.embed, KernelEmbedding) == tied
        assert mx.array_equal(holder.embed(tokens), expected).item()
        assert near(holder.embed.as_linear(x), logits)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ((4, 1, 1), (4, 3)),  # a row for all of its choices, as before a gate
        ((2, 5, 1, 1), (2, 5, 3)),
        ((2, 5, 3, 1), (2, 5, 3)),  # a row for each choice, as after one
        ((6, 1), (6,)),
        ((6, 2), (6,)),
        ((5, 3, 1), (1, 3)),  # the same choices for all
    ],
)
def test_experts_choose_and_broadcast_as_mlx_does(shape: tuple[int, ...], chosen: tuple[int, ...], bias: bool) -> None:
    layer = SwitchLinear(WIDTH, 24, 5, bias=bias)
    if bias:
        layer.bias = mx.random.normal((5, 24), key=mx.random.key(9))
    holder = Holder(layer=layer.to_quantized(group_size=32, bits=4))
    x, indices = x_of(*shape), mx.random.randint(0, 5, chosen, key=mx.random.key(2))
    expected, in_order = holder.layer(x, indices), mx.sort(indices.reshape(-1))
    rows = x_of(indices.size, 1)
    expected_in_order = holder.layer(rows, in_order, sorted_indices=True)
    pack_products(holder, tied_head=False)
    assert type(holder.layer) is KernelExperts
    assert near(holder.layer(x, indices), expected)
    assert near(holder.layer(rows, in_order, sorted_indices=True), expected_in_order)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_experts_with_a_known_activation_are_one_graph_each(rows: int) -> None:
    experts = SwitchGLU(WIDTH, 64, 6)
    nn.quantize(experts, group_size=32, bits=4)
    x, indices = x_of(2, rows), mx.random.randint(0, 6, (2, rows, 2), key=mx.random.key(2))
    expected = experts(x, indices)
    pack_products(experts, tied_head=False)
    assert isinstance(experts, KernelMlps)
    assert len(experts.experts) == 6
    assert near(experts(x, indices), expected)
    one = experts(x[:, :1], indices[:, :1])
    np.testing.assert_allclose(np.array(one), np.array(experts(x, indices)[:, :1]), rtol=0, atol=1e-5)


def test_each_experts_own_tensor_scale_counts() -> None:
    layer = SwitchLinear(WIDTH, 24, 3, bias=False)
    layer.weight = layer.weight * mx.array([1.0, 10.0, 100.0])[:, None, None]
    made = layer.to_quantized(group_size=16, bits=4, mode="nvfp4", global_scale=True)
    holder, x, indices = Holder(layer=made), x_of(4, 1, 1), mx.array([[0, 1, 2]] * 4)
    expected = unpacked(made, mx.float32)(x, indices)  # on a CPU, MLX has no such product
    pack_products(holder, tied_head=False)
    for expert in range(3):
        assert near(holder.layer(x, indices)[:, expert], expected[:, expert])


def test_layers_of_different_widths_and_with_biases_share_an_input() -> None:
    kinds = {"q": (4, 32), "k": (8, 64), "v": (5, 128), "o": (4, 32)}
    plain = {
        name: random_layer(number, 16 * (number + 1), bias=number == 1).to_quantized(group_size=block, bits=bits)
        for number, (name, (bits, block)) in enumerate(kinds.items())
    }
    holder, x = Holder(**plain), x_of(2, 3)
    expected = {name: layer(x) for name, layer in plain.items()}
    pack_products(holder, tied_head=False)
    assert holder.q.shared is holder.k.shared is holder.v.shared
    for name in kinds:
        assert near(holder[name](x), expected[name])


def test_what_the_kernels_hold_is_what_was_told() -> None:
    plain = random_layer(1, 24, bias=True).to_quantized(group_size=32, bits=4)
    told = packed(plain).nbytes + 24 * 4
    assert pack_products(Holder(layer=plain), tied_head=False) == told
