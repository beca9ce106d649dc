"""`chorus plan`, `chorus config` and `chorus models preshard` as a user sees them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chorus.cli import app
from chorus.cluster.profile.rates import Rates
from chorus.config.settings import known_keys
from chorus.planning.plan import Plan
from tests.support.tiny_model import write_tiny_model

GOLDEN = Path(__file__).parents[1] / "config" / "golden"
BROKEN = Path(__file__).parents[1] / "config" / "broken"


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_model(tmp_path / "tiny", "llama", max_position_embeddings=8192, tokenizer=False))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_plan_is_a_table_with_a_bar_per_rank(model: str) -> None:
    shown = run("plan", model, "--nodes", "studio=48GB:30,mini=16GB:10", "--strategy", "memory_proportional")
    assert shown.exit_code == 0, shown.output
    assert "rank 0" in shown.stdout
    assert "rank 1" in shown.stdout
    assert "1-6" in shown.stdout
    assert "0-0" in shown.stdout
    assert "░" in shown.stdout
    assert "tokens/s" in shown.stdout
    assert "limited by" in shown.stdout
    assert "to serve it like this: --split 6,1" in shown.stdout


def test_one_node_and_what_was_left_out_are_said(model: str) -> None:
    shown = run("plan", model, "--nodes", "48GB:30,16GB:10")
    assert "one node" in shown.stdout
    assert "left out node1: with it a request would take" in shown.stdout


def test_json_is_the_plan_itself(model: str) -> None:
    shown = run("plan", model, "--nodes", "48GB:30,16GB:10", "--strategy", "uniform", "--json")
    made = Plan.from_json(shown.stdout)
    assert made.split == (3, 4)
    assert made.strategy == "uniform"
    assert json.loads(shown.stdout)["split"] == [3, 4]


def test_devices_of_a_file_are_planned_for(model: str) -> None:
    shown = run("plan", model, "-c", str(GOLDEN / "devices.json"), "--json")
    made = Plan.from_json(shown.stdout)
    assert made.strategy == "memory_proportional"
    assert [(rank.node, rank.layers) for rank in made.ranks] == [("studio", 6), ("mini2", 1)]


def test_a_file_without_a_strategy_means_balanced_and_its_coordinator_leads(model: str) -> None:
    made = Plan.from_json(run("plan", model, "-c", str(GOLDEN / "devices_without_sharding.yaml"), "--json").stdout)
    assert made.strategy == "balanced"
    assert made.nodes[0] == "a"
    auto = run("plan", model, "-c", str(GOLDEN / "devices_without_sharding.yaml"), "--strategy", "auto", "--json")
    assert Plan.from_json(auto.stdout).nodes[0] == "a"


def test_a_device_of_unknown_memory_is_named(model: str) -> None:
    shown = run("plan", model, "-c", str(GOLDEN / "devices_exact_layers.yaml"))
    assert shown.exit_code == 1


def test_what_does_not_fit_fails_with_the_missing_bytes(model: str) -> None:
    shown = run("plan", model, "--nodes", "0.5GB:10")
    assert shown.exit_code == 1
    assert "more memory; add an 8 GB node" in shown.stderr
    as_json = run("plan", model, "--nodes", "0.5GB:10", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["missing_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "48XB"), "--nodes: expected memory and GPU cores like 48GB:30, got '48XB'"),
        (("--nodes", "48GB", "--link", "string"), "--link: expected one of loopback, wifi"),
        (("--nodes", "48GB", "--strategy", "best"), "sharding.strategy: should be 'auto'"),
        (("--nodes", "48GB", "--context", "100"), "512 + 256 tokens do not fit a context of 100"),
        (("--nodes", "48GB", "--context", "9000"), "the model's context is 8192 tokens, not 9000"),
    ],
)
def test_a_wrong_option_is_one_clear_line(model: str, arguments: tuple[str, ...], message: str) -> None:
    shown = run("plan", model, *arguments)
    assert shown.exit_code == 1
    assert message in " ".join(shown.stderr.split())


def test_without_machines_this_one_is_planned_for(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates("chip", "float32", 16 << 30, 1e11, 1e10, 1e9, 1e9, 1e-4, ("ring",))
    monkeypatch.setattr("chorus.cluster.profile.machine._measured", lambda threads: rates)
    assert Plan.from_json(run("plan", model, "--json").stdout).nodes == ("here",)
    two = Plan.from_json(run("plan", model, "--ranks", "2", "--json").stdout)
    assert two.nodes == ("rank0", "rank1")


def write_shape(folder: Path) -> str:
    """A model of 32B in 4 bits, by groups of 64, of which there are only the headers: its files have no blocks."""
    hidden, inner, layers, vocabulary, kv = 5120, 27_648, 64, 152_064, 1024
    matrices = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden)}
    for layer in range(layers):
        for name, shape in (
            *(("self_attn.q_proj", (hidden, hidden)), ("self_attn.o_proj", (hidden, hidden))),
            *(("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden))),
            *(("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner))),
        ):
            matrices[f"model.layers.{layer}.{name}"] = shape
    header, end = {}, 0
    for name, (rows, columns) in matrices.items():
        groups = ("BF16", [rows, columns // 64], rows * columns // 32)
        for part, (kind, shape, nbytes) in {
            "weight": ("U32", [rows, columns // 8], rows * columns // 2),
            "scales": groups,
            "biases": groups,
        }.items():
            header[f"{name}.{part}"] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + nbytes]}
            end += nbytes
    folder.mkdir()
    told = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(told)) + told)
        file.truncate(file.tell() + end)
    config = {"model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
    config |= {"num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": vocabulary, "rms_norm_eps": 1e-6}
    config |= {"max_position_embeddings": 32_768, "quantization": {"bits": 4, "group_size": 64}}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def linux_boxes(file: Path, memory_gb: int) -> str:
    offers = {"backend": "cpu", "memory_gb": memory_gb, "tflops": 1.0, "bandwidth_gbs": 60}
    boxes = [{"device_id": f"box{n}", "hostname": f"10.0.0.{n}", "capabilities": offers} for n in (1, 2, 3)]
    file.write_text(json.dumps({"devices": boxes}))
    return str(file)


def test_three_linux_machines_serve_a_packed_32b_five_times_as_fast_as_an_unpacked_one(tmp_path: Path) -> None:
    shape = write_shape(tmp_path / "32b")
    asked = ("plan", shape, "-c", linux_boxes(tmp_path / "boxes.json", 64), "--parallel", "pipeline", "--json")
    packed, unpacked = (
        Plan.from_json(run(*asked, "--cpu-products", products).stdout) for products in ("auto", "float32")
    )
    assert {rank.numbers for rank in packed.ranks} == {"float32, packed"}
    assert {rank.numbers for rank in unpacked.ranks} == {"float32, unpacked"}
    assert packed.prediction.tokens_per_second >= 5 * unpacked.prediction.tokens_per_second
    assert sum(rank.weight_bytes for rank in packed.ranks) < 0.2 * sum(rank.weight_bytes for rank in unpacked.ranks)


def test_a_packed_32b_fits_one_linux_machine_with_48_gb(tmp_path: Path) -> None:
    shape = write_shape(tmp_path / "32b")
    made = run("plan", shape, "-c", linux_boxes(tmp_path / "boxes.json", 48), "--parallel", "single", "--json")
    assert [rank.numbers for rank in Plan.from_json(made.stdout).ranks] == ["float32, packed"]


def test_a_plan_file_cuts_the_model(model: str, tmp_path: Path) -> None:
    made = run("plan", model, "--nodes", "48GB:30,16GB:10", "--strategy", "uniform", "--json").stdout
    (tmp_path / "plan.json").write_text(made)
    shown = run("models", "preshard", model, "--plan", "plan.json", "--output", "parts", "--json")
    assert shown.exit_code == 0, shown.output
    assert [(part["first_layer"], part["last_layer"]) for part in json.loads(shown.stdout)] == [(4, 6), (0, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --split, --weights and --plan"),
        (("--split", "a,b"), "--split: expected numbers like 20,7,3, got 'a,b'"),
        (("--split", "1,1"), "adds up to 2 layers where the model has 7"),
        (("--plan", "none.json"), "none.json: cannot be read: No such file or directory"),
    ],
)
def test_preshard_says_what_it_needs(model: str, arguments: tuple[str, ...], message: str) -> None:
    shown = run("models", "preshard", model, "--output", "parts", *arguments)
    assert shown.exit_code == 1
    assert message in " ".join(shown.stderr.split())


def test_every_setting_is_shown_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_PORT", "9001")
    shown = run("config", "show", "-c", str(GOLDEN / "tree.yaml"), "--json")
    settings = json.loads(shown.stdout)
    assert settings["api.port"] == {"value": 9001, "origin": "environment: API_PORT"}
    assert settings["engine.split"] == {"value": [20, 7, 3], "origin": str(GOLDEN / "tree.yaml")}
    assert settings["api.host"] == {"value": "127.0.0.1", "origin": "default"}
    assert set(settings) == set(known_keys())
    assert settings["models"].pop("origins") == []
    assert all(entry.keys() == {"value", "origin"} and entry["origin"] for entry in settings.values())
    printed = run("config", "show").stdout
    assert all(key in printed for key in known_keys())


def test_checking_a_file_names_its_ranks_or_its_fault() -> None:
    good = run("config", "check", str(GOLDEN / "devices.json"))
    assert good.stdout == f"{GOLDEN / 'devices.json'}: ok (rank 0 studio, rank 1 mini2)\n"
    bad = run("config", "check", str(BROKEN / "role_unknown.json"))
    assert bad.exit_code == 1
    assert "devices[0].role: should be 'coordinator' or 'worker', got 'master'" in " ".join(bad.stderr.split())


@pytest.mark.parametrize("weights", [None, "1,1"])
def test_tensor_parallelism_is_planned_where_it_is_asked_for(model: str, weights: str | None) -> None:
    given = ("--weights", weights) if weights else ()
    shown = run("plan", model, "--nodes", "48GB:30,48GB:30", "--parallel", "tensor", *given, "--json")
    made = Plan.from_json(shown.stdout)
    assert (made.parallel, made.split) == ("tensor", (1, 1))
    assert [(rank.first_layer, rank.last_layer) for rank in made.ranks] == [(0, 6), (0, 6)]
    text = run("plan", model, "--nodes", "48GB:30,48GB:30", "--parallel", "tensor").stdout
    assert "to serve it like this: --parallel tensor --weights 1,1" in text


def test_stages_of_equal_machines_are_planned_with_the_transport_that_runs_them(model: str) -> None:
    nodes = ("--nodes", "48GB:30,48GB:30,48GB:30,48GB:30", "--link", "rdma", "--parallel", "hybrid")
    shown = run("plan", model, *nodes, "--split", "5,2")
    assert shown.exit_code == 0, shown.stderr
    assert "to serve it like this: --parallel hybrid --transport mpi --split 5,2 --weights 1,1" in shown.stdout
    assert "tensor inside pipeline (--parallel hybrid) runs over mpi, on one machine" in shown.stdout
    made = Plan.from_json(run("plan", model, *nodes, "--split", "5,2", "--json").stdout)
    assert [(rank.first_layer, rank.last_layer, rank.share) for rank in made.ranks] == [(2, 6, 1)] * 2 + [(0, 1, 1)] * 2
    assert sum(Plan.from_json(run("plan", model, *nodes, "--json").stdout).split) == 7


def test_parallelism_of_a_settings_file_is_planned_and_a_flag_goes_over_it(model: str, tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text("engine: {parallel: tensor}")
    nodes = ("--nodes", "48GB:30,48GB:30", "--json")
    assert Plan.from_json(run("plan", model, *nodes).stdout).parallel == "tensor"
    assert Plan.from_json(run("plan", model, *nodes, "--parallel", "single").stdout).parallel == "single"
    uniform = run("plan", model, *nodes, "--parallel", "pipeline", "--strategy", "uniform").stdout
    assert Plan.from_json(uniform).parallel == "pipeline"


def test_a_single_machine_is_the_best_of_those_named(model: str) -> None:
    shown = run("plan", model, "--nodes", "slow=48GB:10,fast=48GB:30", "--parallel", "single", "--json")
    made = Plan.from_json(shown.stdout)
    assert made.nodes == ("fast",)
    assert [(node.node, node.reason) for node in made.excluded] == [("slow", "one node was asked for")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "48GB", "--parallel", "tensor"), "tensor parallelism needs 2 nodes at least"),
        (("--nodes", "48GB,48GB,48GB", "--parallel", "tensor", "--strategy", "uniform"), "3 nodes cannot share 2 key/"),
        (("--nodes", "48GB,48GB", "--parallel", "hybrid"), "parallel hybrid cannot divide 2 nodes"),
        (("--nodes", "48GB,48GB", "--parallel", "both"), "engine.parallel: should be 'auto'"),
        (("--nodes", "0.6GB,0.6GB", "--parallel", "tensor"), "more memory"),
    ],
)
def test_a_parallelism_that_cannot_be_is_one_clear_line(model: str, arguments: tuple[str, ...], message: str) -> None:
    shown = run("plan", model, *arguments)
    assert shown.exit_code == 1
    assert message in " ".join(shown.stderr.split())
