"""What a plan says a rank does with its weights is what that rank loads."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_args

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from rich.console import Console

from chorus.cli.models_preshard import write_parts
from chorus.cli.plan import show
from chorus.config.sources import load_settings
from chorus.deploy.local_plan import local_plan
from chorus.deploy.preshard import cut_facts, with_own_division
from chorus.models import LocalModel
from chorus.models.preshard.folder import Division
from chorus.models.values import ignore_progress
from chorus.planning.costs import Links, Machine, Workload, stage_table
from chorus.planning.facts import read_facts
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest
from chorus.platform.accelerator.dtype import Form, planned_policy, policy_name
from chorus.rank.load import LoadError, load_shard
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

MB = 10**6


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized") / "model"
    wide = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 512, "max_position_embeddings": 1024}
    return write_tiny_model(folder, "llama", quantize={"bits": 4, "group_size": 32}, **wide)


def roomy_and_tight(path: Path) -> tuple[Machine, Machine]:
    """Two machines: one with room for unpacked weights, one with room for packed ones only."""
    facts = read_facts(path)
    half = len(facts.layers) // 2
    large = Machine("large", "cpu", 10**9, flops=1e11, bandwidth=1e10)
    table = stage_table(facts, large, WORK)
    packed = table.need[0, half] - table.weights[0, half] + sum(layer.weights.stored for layer in facts.layers[:half])
    between = int((packed + facts.embedding.stored + table.need[0, half]) / 2)
    return large, Machine("small", "cpu", between, flops=1e11, bandwidth=1e10)


WORK = Workload(prompt=64, output=32, context=256, reserve=MB)


def test_where_unpacked_weights_do_not_fit_one_rank_the_plan_keeps_them_packed_there_alone(quantized: Path) -> None:
    facts = read_facts(quantized)
    half = len(facts.layers) // 2
    nodes = roomy_and_tight(quantized)
    made = plan(facts, nodes, Links(), WORK, PlanRequest("custom", layers=(len(facts.layers) - half, half)))
    assert [rank.policy_name for rank in made.ranks] == ["float32, unpacked", "float32"]
    for rank in made.ranks:
        run = range(rank.first_layer, rank.last_layer + 1)
        shard = load_shard(quantized, lambda _, run=run: run, policy=rank.policy_name)
        names = {name for name, _ in tree_flatten(shard.stage.model.parameters())}
        assert any(name.endswith(".scales") for name in names) is not rank.dequantize
        assert (shard.policy.dtype, shard.policy.dequantize) == (rank.dtype, rank.dequantize)
        assert shard.weight_bytes == pytest.approx(rank.weight_bytes, rel=0.01)


def test_each_rank_of_a_mixed_plan_says_what_it_computes_in_and_computes_in_it(tmp_path: Path) -> None:
    """A Mac takes weights as they are stored, a CPU computes in float32."""
    path = write_tiny_model(tmp_path / "half", "llama", dtype="bfloat16", tokenizer=False)
    nodes = [Machine(name, name, 10**9, flops=1e11, bandwidth=1e10) for name in ("metal", "cpu")]
    made = plan(read_facts(path), nodes, Links(), WORK, PlanRequest("custom", layers=(4, 3)))
    assert [rank.numbers for rank in made.ranks] == ["bfloat16, as stored", "float32"]
    show(made, Console(file=(shown := io.StringIO()), width=120))
    lines = {line.split()[1]: line.rstrip() for line in shown.getvalue().splitlines() if len(line.split()) > 1}
    assert lines["metal"].endswith("bfloat16, as stored")
    assert lines["cpu"].endswith("float32")
    for rank in made.ranks:
        run = range(rank.first_layer, rank.last_layer + 1)
        shard = load_shard(path, lambda _, run=run: run, policy=rank.policy_name)
        assert shard.dtype == rank.computes_in


def test_the_word_of_the_plan_goes_over_what_the_rank_would_choose(quantized: Path) -> None:
    shard = load_shard(quantized, range, dtype="auto", memory_fraction=0.8, policy="stored")
    assert (shard.policy.dtype, shard.policy.dequantize) == ("stored", False)
    assert any(array.dtype == mx.uint32 for _, array in tree_flatten(shard.stage.model.parameters()))


def test_memory_that_is_gone_since_the_plan_is_an_error_with_the_way_out(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chorus.platform.memory.amounts import DeviceMemory

    monkeypatch.setattr("chorus.rank.load.device_memory", lambda mx: DeviceMemory(MB, MB))
    with pytest.raises(LoadError, match=r"the plan unpacks the weights to \d+ MiB and 1 MiB are free: end other"):
        load_shard(quantized, range, policy="float32, unpacked")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "stored"])
@pytest.mark.parametrize("form", get_args(Form))
def test_a_policy_is_told_by_its_name(dtype: str, form: Form) -> None:
    name = policy_name(dtype, form)
    if (dtype == "stored" and form) or (dtype != "float32" and form.startswith("packed")):
        with pytest.raises(ValueError, match="which is unknown"):
            planned_policy(name)
        return
    found = planned_policy(name)
    assert (found.dtype, found.form, found.name) == (dtype, form, name)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a GPU, whichever this is, with the kernels, that was never measured."""
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("chorus.platform.accelerator.device.backend", lambda: "cpu")
    monkeypatch.setattr("chorus.platform.cpu.products.installed", lambda: True)


@pytest.mark.usefixtures("on_cpu")
def test_ranks_of_this_machine_are_decided_about_together(quantized: Path, tmp_path: Path) -> None:
    settings = load_settings(None, {"engine": {"ranks": 2}}, {}, tmp_path)
    model = LocalModel("m", "m", quantized)
    assert local_plan(settings, model).policies == ("float32, packed", "float32, packed")
    unpacked = load_settings(None, {"engine": {"ranks": 2, "cpu_products": "float32"}}, {}, tmp_path)
    assert local_plan(unpacked, model).policies == ("float32, unpacked", "float32, unpacked")
    stored = load_settings(None, {"engine": {"ranks": 2, "dtype": "stored"}}, {}, tmp_path)
    assert local_plan(stored, model).policies == ("stored", "stored")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("room_mb", "products", "expected"),
    [(400, "float32", "float32, unpacked"), (16, "float32", "float32"), (16, "auto", "float32, packed")],
)
def test_stages_of_several_ranks_and_parts_cut_before_are_decided_about_too(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_mb: int, products: str, expected: str
) -> None:
    """With room for unpacked weights in every rank, and with room for quantized ones only."""
    monkeypatch.setattr("chorus.platform.memory.amounts.available_memory", lambda: room_mb * MB)
    model, common = LocalModel("m", "m", quantized), {"reserve_mb": 0, "memory_fraction": 1.0, "context": 64}
    common["cpu_products"] = products
    hybrid = {"parallel": "hybrid", "split": (4, 3), "weights": (1, 1), **common}
    found = [local_plan(load_settings(None, {"engine": hybrid}, {}, tmp_path), model)]
    for division in (Division("pipeline", (2, 2, 2, 1)), Division("tensor", (1, 1))):
        write_parts(model, division, folder := tmp_path / division.parallel, ignore_progress)
        # Half as many ranks share the machine, and each holds half of everything.
        engine = common | ({"memory_fraction": 0.5} if division.parallel == "tensor" else {})
        settings = load_settings(None, {"engine": engine}, {}, tmp_path)
        parts = LocalModel("parts", "m", folder)
        found.append(local_plan(with_own_division(settings, parts), parts))
    assert [made.policies for made in found] == [(expected,) * 4, (expected,) * 4, (expected,) * 2]


def test_a_model_in_parts_is_known_as_the_whole(quantized: Path, tmp_path: Path) -> None:
    write_parts(LocalModel("m", "m", quantized), Division("pipeline", (5, 2)), tmp_path / "parts", ignore_progress)
    assert cut_facts(tmp_path / "parts") == read_facts(quantized, "m")


def test_status_shows_what_was_planned_beside_what_was_loaded(quantized: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "profile.json").write_text(_measured_before())
    environment = {"CHORUS_CACHE": str(tmp_path / "cache")}
    with ChorusServer(quantized, ["--ranks", "2", "--threads", "1"], tmp_path, environment) as server:
        status = server.get("/cluster/status")
    planned, loaded = status["plan"]["ranks"], status["ranks"]
    assert [rank["computes_in"] for rank in planned] == [rank["dtype"] for rank in loaded] == ["float32"] * 2
    assert [rank["form"] for rank in planned] == [rank["form"] for rank in loaded]
    for one, other in zip(planned, loaded, strict=True):
        assert one["weight_bytes"] == pytest.approx(other["weight_bytes"], rel=0.05)


def _measured_before() -> str:
    import json
    from dataclasses import asdict

    from chorus.cluster.profile.machine import _key
    from chorus.cluster.profile.rates import Rates

    rates = Rates("chip", "float32", 16 << 30, 1e11, 1e10, 1e9, 1e9, 1e-4, ("ring",))
    return json.dumps({_key(1): asdict(rates)})
