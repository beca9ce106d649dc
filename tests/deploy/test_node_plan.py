"""Which layers a cluster's nodes get, and which files each of them is sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.cluster.transfer.share import share_folder
from chorus.config.engine import EngineSpec
from chorus.config.sections import ShardingConfig
from chorus.deploy.nodes.cables import Way
from chorus.deploy.nodes.deployment import deployment, needed_files
from chorus.deploy.nodes.links import Route, Routes
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.nodes.plan import HERE, is_given, link_over, name_here, plan_request


def spec(split: tuple[int, ...] | None = None) -> EngineSpec:
    return EngineSpec(address="unix:/x", model_path=Path("/m"), split=split)


def test_a_split_for_these_ranks_is_kept_as_it_is() -> None:
    assert is_given(spec((20, 7, 3)), 3)
    assert not is_given(spec((20, 7, 3)), 2)
    assert not is_given(spec(), 2)


def test_after_a_loss_the_layers_are_divided_anew(caplog: pytest.LogCaptureFixture) -> None:
    wish = plan_request(spec((20, 7, 3)), ShardingConfig(), 2)
    assert (wish.strategy, wish.layers) == ("balanced", None)
    assert "is not for 2 ranks" in caplog.text


def test_the_strategy_of_the_configuration_holds() -> None:
    assert plan_request(spec(), ShardingConfig(strategy="memory_proportional"), 2).strategy == "memory_proportional"
    assert plan_request(spec(), ShardingConfig(), 2).strategy == "balanced"


def test_a_link_costs_what_was_measured_and_what_its_transport_adds() -> None:
    over = {name: link_over(name, 2.0, 1e9) for name in ("grpc", "ring", "mpi")}
    assert over["grpc"].latency == pytest.approx(0.001)
    assert over["mpi"].latency < over["ring"].latency < over["grpc"].latency
    assert over["grpc"].all_reduce is None
    assert all(over[name].all_reduce > 0.001 for name in ("ring", "mpi"))
    assert link_over("mpi", 0.1, None).latency == 0.0


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Four layers, one file each, and the embedding in a file of its own."""
    names = {f"model.layers.{layer}.w": f"model-{layer}.safetensors" for layer in range(4)}
    names["model.embed_tokens.weight"] = "model-e.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (tmp_path / "config.json").write_text("{}")
    for file in names.values():
        (tmp_path / file).write_bytes(b"x" * 10)
    return tmp_path


def test_this_machine_has_its_name_in_a_plan_unless_a_node_has_the_same() -> None:
    nodes: list[Any] = [SimpleNamespace(name="mini2")]
    assert (name_here("mini1", nodes), name_here("mini2", nodes)) == ("mini1", HERE)


def test_a_node_is_sent_only_the_files_that_hold_its_layers(sharded: Path) -> None:
    share = share_folder("m", sharded)
    middle = {file.name for file in needed_files(share, range(1, 3), 4, everything=False)}
    described = {"config.json", "model.safetensors.index.json"}
    assert middle == described | {"model-1.safetensors", "model-2.safetensors"}
    first = {file.name for file in needed_files(share, range(1), 4, everything=False)}
    assert first == described | {"model-0.safetensors", "model-e.safetensors"}
    assert len(needed_files(share, range(1), 4, everything=True)) == len(share.files)


def test_the_leader_listens_where_its_ranks_come_to_it(sharded: Path) -> None:
    """At one address as ever; where they come by several cables, at all that this machine has."""
    nodes: list[Any] = [SimpleNamespace(own_ip="10.1.0.1"), SimpleNamespace(own_ip="10.2.0.1")]
    identity: Any = SimpleNamespace(member=SimpleNamespace(node_id="a"), folder=Path("/i"))

    def told(routes: Routes) -> EngineSpec:
        options = ClusterOptions(leader_port=50200)
        made = deployment(
            Way("grpc", nodes),
            share_folder("m", sharded),
            4,
            lambda ranks: spec().model_copy(update={"ranks": ranks}),
            identity,
            options,
            routes=routes,
        )
        return EngineSpec.model_validate_json(made.leader(("b@10.1.0.2:1", "c@10.2.0.3:1")).told or "")

    one = told({(1, 0): Route("10.1.0.1"), (2, 0): Route("10.1.0.1"), (0, 1): Route("10.1.0.2")})
    assert one.ranks[0] == "a@10.1.0.1:50200"
    two = told({(1, 0): Route("10.1.0.1"), (2, 0): Route("10.2.0.1")})
    assert two.ranks[0] == "a@0.0.0.0:50200"
    assert two.routes == ("", "", "", "10.1.0.1", "", "", "10.2.0.1", "", "")


def test_the_same_files_have_the_same_share_and_others_do_not(sharded: Path) -> None:
    before = share_folder("m", sharded).digest
    assert share_folder("m", sharded).digest == before
    (sharded / "config.json").write_text("[]")
    assert share_folder("m", sharded).digest != before
