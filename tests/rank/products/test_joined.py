"""Layers that are given the same input are one product: same numbers, parameters and memory, fewer operations."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.nn.layers.distributed import shard_linear
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear

from chorus.rank import load
from chorus.rank.load import load_shard
from chorus.rank.pipeline.stage import Stage, layer_count
from chorus.rank.products.joined import JoinedExperts, JoinedLayer, JoinedLinear, join_products, pays, runs
from chorus.rank.tensor.divide import Imagined, TensorPlan, shard_model
from chorus.rank.tensor.modules import Grouped, Padded
from chorus.rank.upstream.forms import become
from tests.rank.pipeline.programs import PROGRAMS
from tests.rank.pipeline.test_pipeline_parity import clone, difference, of, run, splits
from tests.support.architectures import ARCHITECTURES, UNSUPPORTED, build, build_config, single_cache
from tests.support.tiny_model import LLAMA_400M, write_random_model

WIDTH = 64
NEAR = 1e-5
"""Of the largest number: what adding up in another order does in float32."""
ONE_MATRIX = {
    *("gpt2", "gpt_bigcode", "gpt_neox", "mamba", "mamba2", "openelm", "phi3", "phi3small", "phixtral", "plamo3"),
}
"""Architectures that come with one matrix for each input."""


@pytest.fixture(scope="session", autouse=True)
def the_kernels() -> None:
    """None are needed: these are MLX's own products."""


class Holder(nn.Module):
    """A module that holds layers and leaves it to the test what is done with them."""

    def __init__(self, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        mx.eval(self.parameters())


def x_of(*shape: int, width: int = WIDTH) -> mx.array:
    return mx.random.normal((*shape, width), key=mx.random.key(sum(shape)))


def near(made: mx.array, expected: mx.array) -> bool:
    off = mx.max(mx.abs(mx.nan_to_num(made - expected))) / mx.max(mx.abs(mx.nan_to_num(expected, posinf=0, neginf=0)))
    return made.shape == expected.shape and off.item() <= NEAR


def attention(bias: bool = False, kind: dict[str, Any] | None = None, **rows: int) -> Holder:
    """Layers of a module that ends with its last."""
    rows = rows or {"q": 64, "k": 32, "v": 32, "o": 64}
    layers = {name: nn.Linear(WIDTH, count, bias) for name, count in rows.items()}
    return Holder(**{name: layer.to_quantized(**kind) if kind else layer for name, layer in layers.items()})


def groups(module: nn.Module) -> dict[int, list[str]]:
    """The names of the layers that share, for each of those who do."""
    found: dict[int, list[str]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, JoinedLayer):
            found.setdefault(id(layer.shared), []).append(path.rpartition(".")[2])
    return {key: sorted(names) for key, names in found.items()}


def operations(*arrays: mx.array) -> Counter[str]:
    """What is still to be computed for these, by the names that MLX gives it."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *arrays)
    return Counter(re.findall(r'label ="(\w+)", shape=rectangle', dot.getvalue()))


@pytest.mark.parametrize(("backend", "expected"), [("cuda", True), ("metal", True), ("cpu", False)])
def test_it_is_done_where_it_pays(backend: Any, expected: bool) -> None:
    assert pays(backend) is expected


@pytest.mark.parametrize(
    ("places", "expected"),
    [((0, 1, 2), [(0, 3)]), ((1,), [(1, 2)]), ((0, 2), [(0, 1), (2, 3)]), ((0, 1, 3), [(0, 2), (3, 4)]), ((), [])],
)
def test_neighbours_are_one_product(places: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    assert list(runs(places)) == expected


FOUR_BITS = {"group_size": 32, "bits": 4}
MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
MXFP8 = {"group_size": 32, "bits": 8, "mode": "mxfp8"}
KINDS = [None, FOUR_BITS, {"group_size": 64, "bits": 3}, MXFP4, MXFP8, {"group_size": 16, "bits": 4, "mode": "nvfp4"}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (2, 5)])
def test_linear_layers_give_what_they_gave(shape: tuple[int, ...], bias: bool, kind: dict[str, Any] | None) -> None:
    module, x = attention(bias, kind), x_of(*shape)
    expected = {name: module[name](x) for name in "qkvo"}
    before = dict(tree_flatten(module.parameters()))
    join_products(module)
    assert list(groups(module).values()) == [["k", "q", "v"]]
    for name in "vqko":
        assert near(module[name](x), expected[name])
    after = dict(tree_flatten(module.parameters()))
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]).item() for name in before)


@pytest.mark.parametrize("kind", [None, FOUR_BITS, MXFP4], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 40])  # many are put in order
def test_experts_give_what_they_gave(tokens: int, bias: bool, kind: dict[str, Any] | None) -> None:
    experts = SwitchGLU(WIDTH, 96, 5, bias=bias)
    for name, layer in experts.items():
        if bias and isinstance(layer, SwitchLinear):
            layer.bias = mx.random.normal(layer.bias.shape, key=mx.random.key(len(name)))
    if kind:
        nn.quantize(experts, **kind)
    x, indices = x_of(2, tokens), mx.random.randint(0, 5, (2, tokens, 2), key=mx.random.key(2))
    expected, of_up = experts(x, indices), experts.up_proj(x_of(2, 1), mx.array([3, 1]))
    join_products(experts)
    assert list(groups(experts).values()) == [["gate_proj", "up_proj"]]
    assert isinstance(experts.gate_proj, JoinedExperts)
    assert near(experts(x, indices), expected)
    for _ in range(2):  # with an input that the gate is not given
        assert near(experts.up_proj(x_of(2, 1), mx.array([3, 1])), of_up)


def test_only_what_is_alike_is_joined() -> None:
    module = attention(q=64, k=32, v=32, o=64)
    module.v = nn.Linear(WIDTH, 32)
    assert_joined(module, [["k", "q"]])  # the other has a bias
    module = attention(q=64, k=32, v=32, g=16, o=64)
    for name in "kv":
        module[name] = module[name].to_quantized(group_size=32, bits=4)
    module.g = module.g.to_quantized(group_size=32, bits=8)
    assert_joined(module, [["k", "v"]])
    module = attention(q=64, k=32, v=32, o=64)
    module.k.set_dtype(mx.bfloat16)
    assert_joined(module, [["q", "v"]])
    experts = Holder(**{name: SwitchLinear(WIDTH, 96, 3, bias=False) for name in ("gate", "up")})
    for name in ("gate", "up"):
        experts[name] = experts[name].to_quantized(mode="nvfp4", group_size=16, bits=4, global_scale=True)
    assert_joined(experts, [])


def assert_joined(module: nn.Module, expected: list[list[str]]) -> None:
    join_products(module)
    join_products(module)  # a module may be met twice
    assert list(groups(module).values()) == expected


def test_a_layer_that_pads_its_input_is_left_alone() -> None:
    module = attention(q=64, k=32, v=32, g=16, o=64)
    become(module.g, Padded, foreign=(2, 3))
    assert_joined(module, [["k", "q", "v"]])


@pytest.mark.parametrize("kind", [None, FOUR_BITS], ids=str)
def test_what_mlx_lm_divides_by_rows_is_joined_and_what_it_sums_is_not(kind: dict[str, Any] | None) -> None:
    group, plain, x = mx.distributed.init(), attention(True, kind, q=64, k=64, v=64, o=64), x_of(2, 3)
    layers = {name: shard_linear(plain[name], "all-to-sharded", group=group) for name in "qkv"}
    module = Holder(**layers, o=shard_linear(plain.o, "sharded-to-all", group=group))
    for layer in module.values():
        become(layer, Grouped, group=group)
    expected = {name: module[name](x) for name in "qkvo"}
    assert_joined(module, [["k", "q", "v"]])
    for name in "qkvo":
        assert isinstance(module[name], Grouped)
        assert near(module[name](x), expected[name])


def test_layers_that_turn_out_to_have_inputs_of_their_own_are_multiplied_alone_without_a_copy() -> None:
    module = attention(q=512, k=512, v=512, g=512, o=512)
    x, other = x_of(1, 1), x_of(2, 1)
    expected = {name: module[name](x) for name in "qkg"} | {"v": module.v(other)}
    join_products(module)
    mx.eval(module.parameters())
    mx.clear_cache()
    before = mx.get_active_memory()
    for _ in range(2):
        for name, given in (("q", x), ("k", x), ("g", x), ("v", other)):
            assert near(module[name](given), expected[name])
    made = [module.q(x), module.k(x), module.g(x), module.v(other)]
    assert operations(*made)["Matmul"] == 3  # q and k are neighbours still
    mx.eval(made)
    assert mx.get_active_memory() - before < module.q.weight.nbytes


@pytest.mark.parametrize("rows", [1, 4])
def test_a_llama_layer_has_four_products_instead_of_seven(rows: int) -> None:
    before, after = a_layer(rows, joined=False), a_layer(rows, joined=True)
    assert (before["Matmul"] - after["Matmul"], before["Transpose"] - after["Transpose"]) == (3, 5)
    assert sum(before.values()) - sum(after.values()) == 9
    assert not after["Split"], "its parts do not know how far they reach"


def a_layer(rows: int, joined: bool) -> Counter[str]:
    """What one layer adds to a step of so many sequences."""
    counts = []
    for layers in (1, 2):
        model = build_config({**ARCHITECTURES["llama"], "num_hidden_layers": layers})
        if joined:
            join_products(model)
        cache, tokens = single_cache(model), mx.zeros((rows, 1), mx.int32)
        mx.eval(model(tokens, cache=cache), [entry.state for entry in cache])
        counts.append(operations(model(tokens, cache=cache)))
    counts[1].subtract(counts[0])
    return counts[1]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - UNSUPPORTED.keys()))
def test_every_architecture_says_what_it_said(name: str) -> None:
    model = build(name)
    expected = said(model)
    join_products(model)
    assert bool(groups(model)) == (name not in ONE_MATRIX)
    assert all(near(made, wanted) for made, wanted in zip(said(model), expected, strict=True))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, FOUR_BITS) for name in ("llama", "qwen2", "gemma3n", "qwen3_next", "deepseek_v3")),
        ("qwen3_moe", MXFP8),
        ("gpt_oss", MXFP4),
        ("glm4_moe", {"group_size": 64, "bits": 6}),
    ],
)
def test_quantized_it_says_what_it_said(name: str, kind: dict[str, Any]) -> None:
    model = build(name)
    nn.quantize(model, **kind, class_predicate=lambda _, layer: can_be(layer, kind["group_size"]))
    expected = said(model)
    join_products(model)
    assert groups(model)
    assert all(near(made, wanted) for made, wanted in zip(said(model), expected, strict=True))


def can_be(layer: nn.Module, group_size: int) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % group_size == 0


def said(model: nn.Module) -> list[mx.array]:
    """The logits of a prompt and of a token after it."""
    cache = single_cache(model)
    made = [model(mx.array([tokens]), cache=cache) for tokens in ([3, 5, 7, 9, 11, 2, 4], [6])]
    mx.eval(made)
    return made


@pytest.mark.parametrize("name", ["llama", "gemma3n", "qwen3_moe", "qwen3_next"])
def test_a_pipeline_says_what_one_rank_says(name: str) -> None:
    model = build(name)
    layers = layer_count(model)
    one, three = (staged(model, edges) for edges in ((0, layers), splits(layers)[1]))
    assert all(groups(stage.model) for stage in (*one, *three))
    for program in PROGRAMS[:3]:  # the others are about caches
        wanted, got = run(program, one), run(program, three)
        assert not isinstance(wanted, Exception)
        assert {column: difference(rows, of(column, got)) for column, rows in wanted.items()} == dict.fromkeys(
            wanted, ""
        )


def staged(model: nn.Module, edges: tuple[int, ...]) -> list[Stage]:
    made = [Stage(clone(model), first, last) for first, last in pairwise(edges)]
    for stage in made:
        join_products(stage.model)
    return made


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that adds up its own part alone."""
    monkeypatch.setattr(mx.distributed, "all_sum", lambda x, **_: x)


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize("name", ["llama", "phi", "qwen3_moe", "gpt_oss", "olmo2"])
@pytest.mark.parametrize("bits", [None, 4])
def test_uneven_slices_are_joined_as_they_are(name: str, bits: int | None) -> None:
    config = {**ARCHITECTURES[name], "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3}
    config |= {"head_dim": 32, "intermediate_size": 224, "num_hidden_layers": 3}
    for rank in range(2):
        model = build_config(config)
        if bits:
            nn.quantize(model, group_size=32, bits=bits)
        shard_model(model, config, TensorPlan(rank, (2, 1)), Imagined(rank, 2))
        stage = Stage(model, 0, layer_count(model))
        expected = spoken(stage)
        join_products(model)
        assert ["k_proj", "q_proj", "v_proj"] in groups(model).values()
        assert all(near(made, wanted) for made, wanted in zip(spoken(stage), expected, strict=True))


def spoken(stage: Stage) -> list[mx.array]:
    cache = stage.new_cache()
    made = [stage.forward(mx.array([tokens]), cache)[0] for tokens in ([3, 5, 7, 9], [6])]
    mx.eval(made)
    return made


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model of which one layer counts, loaded where joining pays."""
    monkeypatch.setattr(load, "pays", lambda backend: True)
    yield write_random_model(tmp_path, LLAMA_400M | {"num_hidden_layers": 4, "vocab_size": 512})
    mx.clear_cache()


def test_loading_takes_one_group_more_than_the_model_and_nothing_is_held_twice(wide: Path) -> None:
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    shard = load_shard(wide, range, cpu_products="blas")
    mlp = shard.stage.model.layers[0].mlp
    assert isinstance(mlp.gate_proj, JoinedLinear)
    group = mlp["gate_proj"].weight.nbytes + mlp["up_proj"].weight.nbytes
    assert shard.weight_bytes == sum(array.nbytes for _, array in tree_flatten(shard.stage.model.parameters()))
    assert mx.get_active_memory() - before < shard.weight_bytes + group / 4
    assert mx.get_peak_memory() - before < shard.weight_bytes + 1.25 * group
    stage = shard.stage
    mx.eval(stage.forward(mx.array([[1, 2, 3]]), stage.new_cache()))
    assert mx.get_active_memory() - before < shard.weight_bytes + group / 4
