"""MLPs are recognised by what they do, and only those whose every step is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchMLP

from chorus.rank.products.activations import BETWEEN_ONE, BETWEEN_TWO
from chorus.rank.products.convert import pack_products
from chorus.rank.products.layers import KernelLinear, KernelMlp, KernelMlps
from chorus.rank.products.mlps import EXPERT, Mlp, recognise
from chorus.rank.products.shared import Sizes, sizes_of
from tests.rank.products.test_layers import WIDTH, near, x_of

HIDDEN = 192

PLAIN: dict[str, Callable[[mx.array], mx.array]] = {
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu (tanh)": nn.gelu_approx,
    "gelu (sigmoid)": nn.gelu_fast_approx,
    "relu": nn.relu,
    "relu squared": nn.relu2,
}
GATED: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    **{f"gated {name}": (lambda gate, up, own=own: own(gate) * up) for name, own in PLAIN.items()},
    "gated clipped silu": lambda gate, up: SwigluOAI()(up, gate),
}


class Plain(nn.Module):
    def __init__(self, between: Callable[..., mx.array], bias: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(HIDDEN, WIDTH, bias), nn.Linear(WIDTH, HIDDEN, bias)
        self._between = between

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(self._between(self.up(x)))


class Gated(nn.Module):
    def __init__(self, between: Callable[..., mx.array], bias: bool = False) -> None:
        super().__init__()
        self.up, self.gate = (nn.Linear(WIDTH, HIDDEN, bias) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias)
        self._between = between

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(self._between(self.gate(x), self.up(x)))


class Joined(nn.Module):
    """Gate and what it opens in one matrix."""

    def __init__(self, between: Callable[..., mx.array], gate_first: bool) -> None:
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self._between, self._gate_first = between, gate_first

    def __call__(self, x: mx.array) -> mx.array:
        one, other = mx.split(self.both(x), 2, axis=-1)
        return self.down(self._between(one, other) if self._gate_first else self._between(other, one))


def quantized(module: nn.Module) -> nn.Module:
    for number, (_, layer) in enumerate(module.named_modules()):
        for name, array in layer.items():
            # Large enough that clipping shows.
            if name in ("weight", "bias"):
                layer[name] = mx.random.normal(array.shape, key=mx.random.key(number)) * (
                    0.3 if name == "weight" else 1
                )
    nn.quantize(module, group_size=32, bits=8)
    return module


def sizes(module: nn.Module, kind: type) -> dict[str, Sizes]:
    return {name: sizes_of(child) for name, child in module.items() if type(child) is kind}


def found(module: nn.Module) -> Mlp | None:
    return recognise(module, sizes(module, nn.QuantizedLinear))


def becomes_one_graph(module: nn.Module) -> None:
    x = x_of(2, 5)
    expected = module(x)
    pack_products(module, tied_head=False)
    assert not module.parameters()
    assert isinstance(module, KernelMlp)
    assert near(module(x), expected)


def test_every_activation_is_looked_at_here() -> None:
    assert {between.name for between in BETWEEN_ONE} == PLAIN.keys()
    assert {between.name for between in BETWEEN_TWO} == GATED.keys()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_two_layers_with_an_activation_between(name: str, bias: bool) -> None:
    module = quantized(Plain(PLAIN[name], bias))
    mlp = found(module)
    assert mlp is not None
    assert (mlp.inner, mlp.between.name, mlp.last) == (("up",), name, "down")
    becomes_one_graph(module)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", GATED)
def test_a_gate_and_what_it_opens(name: str, bias: bool) -> None:
    module = quantized(Gated(GATED[name], bias))
    mlp = found(module)
    assert mlp is not None
    assert (mlp.inner, mlp.between.name, mlp.last) == (("gate", "up"), name, "down")
    becomes_one_graph(module)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("name", ["gated silu", "gated gelu (tanh)", "gated clipped silu"])
def test_a_gate_and_what_it_opens_in_one_matrix(name: str, gate_first: bool) -> None:
    module = quantized(Joined(GATED[name], gate_first))
    mlp = found(module)
    assert mlp is not None
    assert mlp.between.name == f"{name}, in one product"
    becomes_one_graph(module)


class Residual(Gated):
    def __call__(self, x: mx.array) -> mx.array:
        return x + super().__call__(x)


class WithNorm(Gated):
    def __init__(self) -> None:
        super().__init__(GATED["gated silu"])
        self.norm = nn.RMSNorm(WIDTH)

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(self.norm(x))


class NormInside(Plain):
    def __init__(self) -> None:
        super().__init__(nn.RMSNorm(HIDDEN), False)


class Scaled(Gated):
    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x) * 0.5


class Twice(Plain):
    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(super().__call__(x))


class WantsMore(Gated):
    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:  # type: ignore[override]
        return super().__call__(x) * mask


class LooksInside(Plain):
    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x.astype(self.up.scales.dtype))


class GivesMore(Plain):
    def __call__(self, x: mx.array) -> Any:
        return super().__call__(x), x


def clipped_at(limit: float) -> Callable[[mx.array, mx.array], mx.array]:
    return lambda gate, up: nn.silu(mx.minimum(gate, limit)) * mx.clip(up, -limit, limit)


NOT_KNOWN = {
    "a residual inside": partial(Residual, GATED["gated silu"]),
    "a norm in front": WithNorm,
    "a norm inside": NormInside,
    "a factor behind": partial(Scaled, GATED["gated silu"]),
    "its layers used twice": partial(Twice, nn.silu, False),
    "another argument": partial(WantsMore, GATED["gated silu"]),
    "a look into a layer": partial(LooksInside, nn.silu, False),
    "more than one result": partial(GivesMore, nn.silu, False),
    "another activation": partial(Plain, nn.mish, False),
    "an activation with another slope": partial(Plain, nn.leaky_relu, False),
    "another gate": partial(Gated, lambda gate, up: mx.sigmoid(gate) * up),
    "a gate on both sides": partial(Gated, lambda gate, up: nn.silu(gate) * nn.silu(up)),
    "clipping at 10": partial(Gated, clipped_at(10)),
    "clipping at 100": partial(Gated, clipped_at(100)),
    "gpt-oss with another limit": partial(Gated, lambda gate, up: SwigluOAI(limit=9.0)(up, gate)),
}


@pytest.mark.parametrize("what", NOT_KNOWN)
def test_what_is_not_known_in_every_step_is_left_to_mlx_with_packed_layers(what: str) -> None:
    module = quantized(NOT_KNOWN[what]())
    before = dict(module)
    assert found(module) is None
    assert dict(module) == before
    assert all(module[name] is child for name, child in before.items()), "the module is as it was"
    arguments = (x_of(2, 5), mx.array(0.5)) if what == "another argument" else (x_of(2, 5),)
    if what == "a look into a layer":
        return  # packed layers have no scales either: no module of upstream's looks
    expected = module(*arguments)
    pack_products(module, tied_head=False)
    assert not isinstance(module, KernelMlp)
    assert isinstance(module.up, KernelLinear)
    made = module(*arguments)
    assert near(made[0], expected[0]) if isinstance(made, tuple) else near(made, expected)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (partial(SwitchGLU, activation=SwigluOAI(), bias=True), "gated clipped silu"),
        (SwitchGLU, "gated silu"),
        (partial(SwitchMLP, activation=nn.relu2), "relu squared"),
        (SwitchMLP, "gelu (tanh)"),
    ],
)
def test_experts_are_recognised_as_well(made: Callable[..., nn.Module], name: str) -> None:
    module = quantized(made(WIDTH, HIDDEN, 4))
    mlp = recognise(module, sizes(module, QuantizedSwitchLinear), EXPERT)
    assert mlp is not None
    assert mlp.between.name == name
    x, indices = x_of(2, 40), mx.random.randint(0, 4, (2, 40, 2), key=mx.random.key(1))
    expected = module(x, indices)
    pack_products(module, tied_head=False)
    assert isinstance(module, KernelMlps)
    assert near(module(x, indices), expected)


def test_an_activation_computes_as_its_graph_does() -> None:
    """`compute` recognises, `build` runs: from far below to far above zero they are one function."""
    x = np.linspace(-40, 40, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    for between, own in ((one, PLAIN[one.name]) for one in BETWEEN_ONE):
        np.testing.assert_allclose(between.compute([x]), np.array(own(mx.array(x))), rtol=1e-4, atol=1e-4)
