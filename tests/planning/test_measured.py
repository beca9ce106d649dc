"""What sums cost Macs: published figures, and the cluster's own as soon as it has run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.cluster.profile import kernels
from chorus.config.engine import EngineSpec
from chorus.deploy.nodes import plan as node_plan
from chorus.engine.lifecycle import process
from chorus.planning.costs import Machine
from chorus.planning.nodes import LINK_KINDS

NODES: list[Any] = [
    SimpleNamespace(
        name=f"mac{rank}",
        node_id=f"id{rank}",
        round_trip_ms=0.6,
        bandwidth=1e9,
        met=SimpleNamespace(ip=f"10.0.0.{rank}"),
    )
    for rank in (1, 2)
]
MACS = [Machine(name, "metal", 1 << 34, 1e13, 1e11) for name in ("here", "mac1", "mac2")]


@pytest.mark.parametrize("kind", ["thunderbolt", "rdma"])
def test_a_sum_crosses_to_a_macs_processor_and_back(kind: str) -> None:
    assert LINK_KINDS[kind].all_reduce is not None
    assert LINK_KINDS[kind].all_reduce >= 0.0004
    assert LINK_KINDS["rdma"].all_reduce <= LINK_KINDS["thunderbolt"].all_reduce


def test_packed_products_are_measured_as_prompts_use_them() -> None:
    rows = kernels._PACKED_ROWS
    assert isinstance(rows, dict)
    assert (rows["metal"], rows["cuda"]) == (512, 512)
    assert rows["cpu"] == 16


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path))
    return tmp_path


def test_macs_pay_for_sums_over_any_transport(cache: Path) -> None:
    cpus = [Machine(mac.name, "cpu", mac.memory, mac.flops, mac.bandwidth) for mac in MACS]
    on_macs, elsewhere = (node_plan.links_between(NODES, "ring", {}, machines) for machines in (MACS, cpus))
    found = on_macs.between("here", "mac1").all_reduce, elsewhere.between("here", "mac1").all_reduce
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] - found[1] == pytest.approx(0.00036)
    assert node_plan.links_between(NODES, "jaccl", {}, MACS).between("mac1", "mac2") == LINK_KINDS["rdma"]


def test_what_a_cluster_measured_goes_over_what_is_published(cache: Path) -> None:
    ranks = ("me@10.0.0.1:1", "id2@10.0.0.3:1", "id1@10.0.0.2:1")
    spec = EngineSpec(address="unix:/x", model_path=Path("/m"), ranks=ranks, transport="jaccl", parallel="tensor")
    process.remember_sums(spec, 0.00123)
    links = node_plan.links_between(NODES, "jaccl", {}, MACS)
    assert links.between("here", "mac1").all_reduce == links.between("mac1", "mac2").all_reduce == 0.00123
    assert node_plan.links_between(NODES[:1], "jaccl", {}, MACS).between("here", "mac1") == LINK_KINDS["rdma"]
    assert node_plan.links_between(NODES, "ring", {}, MACS).between("here", "mac1").all_reduce != 0.00123


def test_ranks_by_hand_and_damaged_files_are_forgotten(cache: Path) -> None:
    by_hand = EngineSpec(address="unix:/x", model_path=Path("/m"), ranks=("10.0.0.1:1", "10.0.0.2:1"))
    process.remember_sums(by_hand, 0.5)
    assert list(cache.iterdir()) == []
    for text in ("", "[]", '{"jaccl id1 id2": "x"}', '{"jaccl id1 id2": -1}', '{"jaccl id1 id2": NaN}'):
        (cache / "sums.json").write_text(text)
        assert node_plan.links_between(NODES, "jaccl", {}, MACS).between("here", "mac1") == LINK_KINDS["rdma"]
