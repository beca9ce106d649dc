"""Plain float32 layers in the kernels: MLX's numbers but for rounding, held once, and only where it pays."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.nn.layers.distributed import shard_linear
from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear

from chorus import platform
from chorus.messages.engine import Sampling
from chorus.rank.load import load_shard, stored_layers
from chorus.rank.pipeline.stage import Stage
from chorus.rank.products import worth
from chorus.rank.products.convert import lay_out_products
from chorus.rank.products.layers import KernelExperts, KernelHead, KernelLinear, KernelMlp, KernelMlps
from chorus.rank.products.shared import Sizes
from chorus.rank.tensor.modules import Grouped, Summed
from chorus.rank.upstream.forms import become
from tests.rank.products.test_convert import Mlp
from tests.rank.products.test_layers import WIDTH, Holder, random_layer, x_of
from tests.support.margins import Reference, explain_difference
from tests.support.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]
ROUNDING = 1e-5
"""Of the largest number: what a sum in another order moves."""
LARGE = {"hidden_size": 512, "intermediate_size": 704, "num_hidden_layers": 3}
"""A layer's MLP has just enough numbers."""
LARGE_EXPERTS = {**LARGE, "moe_intermediate_size": 704, "num_experts": 3, "num_experts_per_tok": 2}
PROMPT = [7, 3, 11, 150, 42]


def equal(made: mx.array, expected: mx.array) -> bool:
    off = mx.abs(made - expected).max() / mx.abs(expected).max()
    return made.shape == expected.shape and off.item() <= ROUNDING


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "LEAST", 0)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "rank_threads", lambda: 1)


@pytest.mark.usefixtures("every_size")
def test_layers_of_every_kind_give_what_mlxs_give() -> None:
    group = mx.distributed.init()
    layers = {
        "one": random_layer(1, 24, bias=True),
        "same": random_layer(2, 40),
        "rows": shard_linear(random_layer(3, 24), "all-to-sharded", group=group),
        "columns": shard_linear(random_layer(4, 32, bias=True), "sharded-to-all", group=group),
    }
    for name in ("rows", "columns"):
        become(layers[name], Grouped, group=group)
    experts = SwitchLinear(WIDTH, 24, 5, bias=True)
    holder, x, indices = Holder(**layers, experts=experts), x_of(2, 3), mx.array([[0, 4], [1, 1], [3, 0]])
    expected = {name: layer(x) for name, layer in layers.items()}
    chosen = experts(x_of(3, 1, 1), indices)
    held = lay_out_products(holder, head_only=False)
    assert isinstance(holder.one, KernelLinear)
    assert isinstance(holder.experts, KernelExperts)
    assert list(dict(holder.parameters())["columns"]) == ["bias"], "which is added once, after the sum"
    assert held == 4 * ((24 + 40 + 24 + 32) * WIDTH + 24 + 5 * (24 * WIDTH + 24))
    for name, own in expected.items():
        assert equal(holder[name](x), own), name
    assert equal(holder.experts(x_of(3, 1, 1), indices), chosen)


@pytest.mark.usefixtures("every_size")
def test_an_mlp_and_each_expert_are_one_graph_and_sums_stay_in_front() -> None:
    mlp, experts = Mlp(), SwitchGLU(WIDTH, 64, 6)
    become(mlp, Summed, group=mx.distributed.init())
    x, indices = x_of(2, 9), mx.random.randint(0, 6, (2, 9, 2), key=mx.random.key(2))
    expected, chosen = mlp(x), experts(x, indices)
    lay_out_products(Holder(mlp=mlp, experts=experts), head_only=False)
    assert isinstance(mlp, KernelMlp)
    assert isinstance(mlp, Summed)
    assert isinstance(experts, KernelMlps)
    assert not mlp.parameters()
    assert equal(mlp(x), expected)
    assert equal(experts(x, indices), chosen)


@pytest.mark.usefixtures("every_size")
def test_an_embedding_goes_only_where_nobody_looks_it_up() -> None:
    tokens, x = mx.array([[3, 95]]), x_of(2, 3)
    embedding = nn.Embedding(96, WIDTH)
    holder, expected = Holder(embed=embedding), embedding.as_linear(x)
    lay_out_products(holder, head_only=False)
    assert holder.embed is embedding
    lay_out_products(holder, head_only=True)
    assert isinstance(holder.embed, KernelHead)
    assert equal(holder.embed.as_linear(x), expected)
    assert holder.embed(tokens).shape == (1, 2, WIDTH)
    assert mx.isnan(holder.embed(tokens)).all().item(), "it would show"


def test_only_large_layers_of_float32_are_worth_it() -> None:
    assert worth.worth([Sizes(512, 1024), Sizes(512, 1024)])
    assert not worth.worth([Sizes(512, 1024)])
    small, half = Holder(a=nn.Linear(64, 64)), Holder(a=nn.Linear(1024, 1024))
    half.set_dtype(mx.bfloat16)
    for model in (small, half):
        assert not worth.any_worth(model, head_only=True)
        assert not lay_out_products(model, head_only=True)
        assert type(model.a) is nn.Linear
    table = Holder(a=nn.Embedding(4096, 512))
    assert worth.any_worth(table, head_only=True)
    assert not worth.any_worth(table, head_only=False)


def test_mlxs_copy_goes_as_the_kernels_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "LEAST", 0)
    count, rows = 12, 2048
    each = rows * WIDTH * 4
    model = Holder(layers=[Holder(layer=random_layer(n, rows)) for n in range(count)])
    mx.eval(model.parameters())
    mx.clear_cache()
    before, seen = mx.get_active_memory(), []
    lay_out_products(model, head_only=False, progress=lambda read: seen.append(mx.get_active_memory()))
    assert before - seen[-1] > (count - 2) * each
    assert before - seen[count // 2] > (count // 2 - 2) * each


HOLDS = """
import sys
from pathlib import Path
from chorus import platform
platform.prepare(1)
import psutil
from chorus.rank.load import load_shard
from chorus.rank.products.usable import usable
assert usable()
before = psutil.Process().memory_full_info().uss
shard = load_shard(Path(sys.argv[1]), lambda total: range(1, total))
assert shard.in_kernels
print(shard.weight_bytes, psutil.Process().memory_full_info().uss - before)
"""


def test_a_rank_holds_its_weights_once_the_tied_head_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 20_000, "num_hidden_layers": 3}
    path = write_tiny_model(tmp_path / "model", "qwen2", tokenizer=False, **sizes, tie_word_embeddings=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
    run = [sys.executable, "-c", HOLDS, str(path)]
    done = subprocess.run(run, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    weights, held = map(int, done.stdout.split())
    assert weights > 180e6, "so that what else a load leaves behind is small beside it"
    assert held < 1.25 * weights


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", LARGE),
    ("qwen2", {**LARGE, "tie_word_embeddings": True, "vocab_size": 2304}),
    ("qwen3_moe", LARGE_EXPERTS),
]


def stages(path: Path, edges: tuple[int, ...], **settings: Any) -> list[Stage]:
    shards = [load_shard(path, lambda _, own=own: range(*own), **settings) for own in pairwise(edges)]
    assert {shard.in_kernels for shard in shards} == {settings.get("cpu_products") != "blas"}
    return [shard.stage for shard in shards]


def greedy(ranks: list[Stage], count: int = 12) -> tuple[list[int], list[mx.array]]:
    """What the stages, one behind the other, say to the prompt, and all their logits."""
    caches = [stage.new_cache() for stage in ranks]
    fed, said, logits = PROMPT, [], []
    for _ in range(count):
        flow: list[mx.array] | None = None
        for stage, cache in zip(ranks, caches, strict=True):
            flow = stage.forward(mx.array([fed]), cache, flow)
        assert flow is not None
        logits.append(flow[0])
        fed = [int(mx.argmax(flow[0], axis=-1).item())]
        said += fed
    return said, logits


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "sizes"), CASES, ids=[name for name, _ in CASES])
def test_one_rank_and_pipelines_say_what_mlx_says(name: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / name, name, tokenizer=False, **sizes)
    total = stored_layers(path)
    plain = stages(path, (0, total), cpu_products="blas")
    wanted, exact = greedy(plain)
    for edges in ((0, total), (0, 1, total)):
        ranks = stages(path, edges)
        said, logits = greedy(ranks)
        assert explain_difference(Reference(path), PROMPT, wanted, said, Sampling()) is None
        assert equal(logits[0], exact[0])
    heads = [module for _, module in ranks[-1].model.named_modules() if isinstance(module, KernelHead)]
    assert len(heads) == (name == "qwen2")


def test_a_tied_head_that_is_looked_up_and_several_threads_leave_all_to_the_blas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "rank_threads", lambda: 2)
    monkeypatch.setattr("chorus.rank.products.threads.share_threads", lambda: None)
    sizes = {**LARGE, "tie_word_embeddings": True}
    tied = write_tiny_model(tmp_path / "tied", "qwen2", tokenizer=False, **sizes)
    own = write_tiny_model(tmp_path / "own", "llama", tokenizer=False, **LARGE)
    assert not load_shard(tied, range).in_kernels
    assert load_shard(tied, lambda total: range(1, total)).in_kernels
    assert load_shard(own, range).in_kernels


def test_a_tied_head_and_its_kernels_have_one_thread_each_where_more_are_only_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []
    monkeypatch.setattr(platform, "rank_threads", lambda: 1)
    monkeypatch.setattr(platform._Most, "threads", 2)
    monkeypatch.setattr("chorus.rank.load.usable", lambda: most.append(platform.most_threads()) or True)
    tied = write_tiny_model(tmp_path / "tied", "qwen2", tokenizer=False, **{**LARGE, "tie_word_embeddings": True})
    own = write_tiny_model(tmp_path / "own", "llama", tokenizer=False, **LARGE)
    assert load_shard(tied, range).in_kernels
    assert load_shard(own, range).in_kernels
    assert most == [1, 2]
    assert platform.most_threads() == 2


@pytest.mark.usefixtures("one_thread")
def test_the_blas_is_had_back_by_its_name(tmp_path: Path) -> None:
    plain = write_tiny_model(tmp_path / "plain", "llama", tokenizer=False, **LARGE)
    quantized = write_tiny_model(tmp_path / "quantized", "llama", quantize={"bits": 4}, tokenizer=False, **LARGE)
    for policy in (None, "float32"):
        assert not load_shard(plain, range, cpu_products="blas", policy=policy).in_kernels
        assert load_shard(plain, range, policy=policy).in_kernels
    unpacked = {products: load_shard(quantized, range, cpu_products=products) for products in ("float32", "blas")}
    assert {shard.policy.name for shard in unpacked.values()} == {"float32, unpacked"}
    assert [shard.in_kernels for shard in unpacked.values()] == [True, False]


def test_without_kernels_mlx_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chorus.rank.load.usable", lambda: False)
    path = write_tiny_model(tmp_path / "model", "llama", tokenizer=False, **LARGE)
    shard = load_shard(path, range)
    assert not shard.in_kernels
    assert np.isfinite(np.array(greedy([shard.stage], 1)[1][0])).all()


LOADS = """
import re, sys
from pathlib import Path
from chorus import platform
platform.prepare(1)
from chorus.rank.load import load_shard
from chorus.rank.products.usable import usable
assert usable()
most = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = most()
shard = load_shard(Path(sys.argv[1]), range)
assert shard.in_kernels
print(shard.weight_bytes, most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="tells the most memory by /proc")
def test_weights_are_never_held_twice_while_they_are_laid_out(tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16}
    model = write_tiny_model(tmp_path / "model", "llama", tokenizer=False, **sizes)
    done = subprocess.run([sys.executable, "-c", LOADS, model], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    weights, most = map(int, done.stdout.split())
    assert weights > 190 << 20
    assert most < weights + (96 << 20)
