"""RDMA through every way of starting: what a configuration says and what is cabled reach the ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from chorus.cli import app
from chorus.config.engine import EngineSpec
from chorus.deploy.hostfile import serve as by_hand
from chorus.deploy.nodes import serve as over_nodes
from chorus.deploy.programs import rank_programs
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_RANK_LOST
from chorus.platform.process.restarts import Life, Restarts
from chorus.transport import catalog

HOSTS = {
    "backend": "jaccl",
    "hosts": [
        {"ssh": "a", "ips": ["127.0.0.1:5000"], "rdma": [None, "rdma_en2"]},
        {"ssh": "b", "ips": ["127.0.0.1:5001"], "rdma": ["rdma_en5", None]},
    ],
}


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
    return tmp_path / "hosts.json"


@pytest.mark.parametrize(("more", "parallel"), [((), "tensor"), (("--parallel", "pipeline"), "pipeline")])
def test_the_leader_of_a_hostfile_divides_every_layer_over_rdma(
    hostfile: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], parallel: str
) -> None:
    seen: list[Any] = []

    async def lead(place: by_hand.HandRank, *_: Any) -> None:
        seen.append(place.settings.engine)

    monkeypatch.setattr(by_hand, "_lead", lead)
    monkeypatch.setattr(by_hand, "find_model", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(by_hand, "listen", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(by_hand, "keep_journal", lambda _: None)
    monkeypatch.setattr(by_hand, "with_own_division", lambda settings, _: settings)
    command = ["worker", "mlx-distributed", "--hostfile", str(hostfile), "--rank", "0", "--backend", "jaccl"]
    CliRunner().invoke(app, [*command, "--model", "m", *more])
    assert [(engine.transport, engine.served_parallel) for engine in seen] == [("jaccl", parallel)]


def test_a_cluster_takes_the_devices_that_its_configuration_names(
    hostfile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(over_nodes, "serve_over_nodes", lambda *arguments: seen.append(arguments[2]))
    result = CliRunner().invoke(app, ["serve", "m", "--cluster", "-c", str(hostfile), "--parallel", "tensor"])
    assert (result.exit_code, len(seen)) == (0, 1), result.output
    assert getattr(seen[0], "rdma_devices", None) == ((None, "rdma_en2"), ("rdma_en5", None))


def test_a_nodes_card_has_room_for_its_cables() -> None:
    fields = wire.Node.DESCRIPTOR.fields_by_name
    assert {"rdma_ports", "meeting_addresses"} <= set(fields)
    assert fields["rdma_ports"].number >= 60


def spec(transport: str) -> EngineSpec:
    ranks = ("10.0.0.1:1", "10.0.0.2:2")
    return EngineSpec(
        address="unix:/x", model_path=Path("/m"), parallel="tensor", ranks=ranks, transport=transport, insecure=True
    )


def test_ranks_over_rdma_are_started_again_once() -> None:
    """Each group that does not form takes protection domains that only a restart of the Mac gives back."""
    most = {name: getattr(rank_programs(spec(name))[0], "restarts", None) for name in ("ring", "jaccl")}
    assert most == {"ring": None, "jaccl": 1}


@pytest.mark.parametrize(("most", "tries"), [(None, 7), (1, 1)])
def test_what_is_scarce_is_tried_less_often(most: int | None, tries: int) -> None:
    restarts, lost = Restarts(), 0
    while restarts.pause(EXIT_RANK_LOST, 0.0, most=most) is not None:
        lost += 1
    assert lost == tries
    settled = Life(served=3600.0)
    assert restarts.pause(EXIT_RANK_LOST, 0.0, settled, most) == 0.0
    assert restarts.pause(EXIT_CANNOT_START, 0.0, most=most) is not None
    assert (restarts.pause(EXIT_CANNOT_START, 0.0, most=most) is None) == (most == 1)


def test_only_transports_that_use_something_up_say_so() -> None:
    assert [row.name for row in catalog.rows() if row.restarts is not None] == [catalog.over_rdma().name]
