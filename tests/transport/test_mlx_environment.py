"""Whatever a hostfile or the cables of a cluster say, MLX finds an environment that it can read: 2 to 8 ranks."""

from __future__ import annotations

import argparse
import json
import os
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx._distributed_utils import common, config

from chorus.config.engine import EngineSpec
from chorus.config.hostfile import HostfileError, parse_hostfile
from chorus.config.sources import load_settings
from chorus.deploy.hostfile.rendezvous import rank_addresses
from chorus.deploy.nodes.cables import Seen, choose_way, seen_at
from chorus.engine.lifecycle.group import _load_request
from chorus.messages.load import Greeting
from chorus.messages.proto import agent_pb2 as wire
from chorus.planning.layout import Layout
from chorus.platform.network import rdma
from chorus.rank.join import connect
from chorus.transport.cables import Cabled
from chorus.transport.links import Inbox
from tests.transport.mlx_rules import RULES, Environment, broken

SIZES = range(2, 9)
NAMES = ("MLX_RANK", "MLX_HOSTFILE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING")


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Environment]]:
    """What MLX would have found, each time a group was asked for."""
    found: list[tuple[str, Environment]] = []
    for name in NAMES:
        # Whatever ranks set is gone after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def init(strict: bool, backend: str) -> object:
        variables = {name: text for name, text in os.environ.items() if name.startswith(("MLX_", "JACCL_"))}
        files = {name: Path(text).read_text() for name, text in variables.items() if Path(text).is_file()}
        found.append((backend, Environment(variables, files)))
        return SimpleNamespace(rank=lambda: 0, size=lambda: 2)

    monkeypatch.setattr(mx.distributed, "init", init)
    return found


def join_all(met: list[tuple[str, Environment]], spec: EngineSpec) -> list[str]:
    """Let every rank of a spec join; answers the shapes that MLX makes of it, after every rule was looked at."""
    spec = EngineSpec.model_validate_json(spec.model_dump_json())
    size, shapes = len(spec.ranks), []
    greetings = [Greeting(device="metal", collective_port=6000 + rank) for rank in range(1, size)]
    followers: list[Any] = [SimpleNamespace(hello=greeting) for greeting in greetings]
    request = _load_request(spec, followers, Layout((4,), (1,) * size), 6000, 6100, b"")
    for rank in range(size):
        met.clear()
        connect(rank, request, Inbox())
        ((backend, environment),) = met
        assert (backend, environment.rank) == (spec.transport, rank)
        assert broken(backend, environment) == []
        shapes.append(environment.becomes if backend == "jaccl" else "ring")
    return shapes


def spec_for(size: int, transport: str, ranks: tuple[str, ...] | None = None, **more: Any) -> EngineSpec:
    addresses = ranks or tuple(f"10.0.0.{rank + 1}:{5000 + rank}" for rank in range(size))
    more = {"parallel": "tensor", **more}
    return EngineSpec(address="unix:/nowhere", model_path=Path("m"), ranks=addresses, transport=transport, **more)


def cables(size: int, shape: str, each: int) -> list[tuple[int, int]]:
    pairs = combinations(range(size), 2) if shape == "mesh" else ((a, (a + 1) % size) for a in range(size))
    return [pair for pair in sorted({tuple(sorted(pair)) for pair in pairs}) for _ in range(each)]


def profiler(size: int, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """What `system_profiler SPThunderboltDataType -json` would print on each of some Macs with such cables."""
    buses: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    for number, ends in enumerate(pairs):
        for own, other in ((0, 1), (1, 0)):
            place = len(buses[ends[own]]) + 1
            bus = {"device_name_key": "Mac Studio", "domain_uuid_key": f"cable{number}-{own}"}
            tag = {"receptacle_id_key": str(place), "current_speed_key": "80 Gb/s"}
            bus |= {"receptacle_1_tag": tag, "_items": [{"domain_uuid_key": f"cable{number}-{other}"}]}
            buses[ends[own]].append(bus)
    return [{"SPThunderboltDataType": own} for own in buses]


def seen(printed: dict[str, Any], mac: int) -> rdma.Rdma:
    """A Mac that is ready for RDMA, with such cables."""
    count = len(printed["SPThunderboltDataType"])
    interfaces = {f"en{place + 1}": f"Thunderbolt {place}" for place in range(1, count + 1)}
    devices = tuple(f"rdma_{interface}" for interface in interfaces)
    return rdma.Rdma(
        "Darwin",
        (26, 3),
        devices,
        True,
        dict.fromkeys(devices, "PORT_ACTIVE"),
        {"en0": "Ethernet", **interfaces},
        addresses={"en0": (f"192.168.1.{mac + 1}/24",)} | dict.fromkeys(interfaces, (f"169.254.{mac}.9/16",)),
        thunderbolt=rdma.parse_thunderbolt(json.dumps(printed), interfaces),
    )


def written_by_mlx(
    monkeypatch: pytest.MonkeyPatch, folder: Path, backend: str, printed: list[dict[str, Any]]
) -> dict[str, Any]:
    """The hostfile that `mlx.distributed_config` itself makes of such cables."""
    hosts = [common.Host(rank, f"mac{rank}", [f"10.0.0.{rank + 1}"], []) for rank in range(len(printed))]
    ports = [
        config.ThunderboltHost(
            f"mac{rank}",
            [
                config.ThunderboltPort(
                    f"en{int(bus['receptacle_1_tag']['receptacle_id_key']) + 1}",
                    bus["domain_uuid_key"],
                    bus["_items"][0]["domain_uuid_key"],
                )
                for bus in own["SPThunderboltDataType"]
            ],
        )
        for rank, own in enumerate(printed)
    ]
    index = {port.uuid: (a, b) for a, host in enumerate(ports) for b, port in enumerate(host.ports)}
    for name in ("add_ips", "can_auto_setup"):
        monkeypatch.setattr(config, name, lambda *_: False)
    addresses = config.IPConfigurator(hosts, ports, index)
    monkeypatch.setattr(addresses, "setup", lambda **_: None)
    arguments = argparse.Namespace(
        verbose=False, auto_setup=False, env=[], output_hostfile=str(folder / f"{backend}.json")
    )
    if backend == "jaccl":
        config.configure_jaccl(arguments, hosts, addresses, [])
    else:
        rings = config.extract_rings(config.make_connectivity_matrix(ports, index))
        config.configure_jaccl_ring(arguments, hosts, addresses, rings[0], [])
    return json.loads((folder / f"{backend}.json").read_text())


def refusal(content: Any) -> str:
    try:
        parse_hostfile(content)
    except HostfileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("backend", ["jaccl", "jaccl-ring"])
@pytest.mark.parametrize("size", SIZES)
def test_every_hostfile_that_mlx_writes_comes_through(
    met: list[tuple[str, Environment]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: int,
    backend: str,
    each: int,
) -> None:
    shape = "mesh" if backend == "jaccl" else "ring"
    content = written_by_mlx(monkeypatch, tmp_path, backend, profiler(size, cables(size, shape, each)))
    assert refusal(content) == ""
    matrix = [host["rdma"] for host in content["hosts"]]
    for form in (content, content["hosts"], {"hosts": matrix}, matrix):
        rows = [host.rdma for host in parse_hostfile(form).hosts]
        shapes = join_all(met, spec_for(size, "jaccl", rdma_devices=rows, coordinator="10.0.0.1:5555"))
        expected = "ring" if each > 1 or (shape == "ring" and size > 3) else "mesh"
        assert set(shapes) == {expected}
    (tmp_path / "hosts.json").write_text(json.dumps(content))
    settings = load_settings(tmp_path / "hosts.json", environment={})
    assert settings.rdma_devices == tuple(host.rdma for host in parse_hostfile(content).hosts)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("shape", ["mesh", "ring"])
@pytest.mark.parametrize("size", SIZES)
def test_every_cluster_of_cabled_macs_comes_through(
    met: list[tuple[str, Environment]], size: int, shape: str, each: int
) -> None:
    macs = [seen(printed, mac) for mac, printed in enumerate(profiler(size, cables(size, shape, each)))]
    cards = []
    for mac in macs:
        card = wire.Node(meeting_addresses=rdma.meeting_addresses(mac))
        card.rdma_ports.extend(
            wire.RdmaPort(device=p.device, own_end=p.own_end, other_end=p.other_end, obstacle=p.obstacle)
            for p in rdma.ports(mac)
        )
        cards.append(wire.Node.FromString(card.SerializeToString()))
    own, *others = (seen_at(f"mac{index}", card) for index, card in enumerate(cards))
    nodes: list[Any] = [SimpleNamespace(name=f"mac{index}", node_id=f"id{index}") for index in range(1, size)]
    way = choose_way(nodes, spec_for(size, "ring"), False, None, False, own, others)
    assert (way.transport, way.meeting_host) == ("jaccl", "192.168.1.1")
    assert len(way.nodes) == size - 1
    shapes = join_all(met, spec_for(size, "jaccl", rdma_devices=way.rdma_devices, coordinator="192.168.1.1:5555"))
    assert set(shapes) == {"mesh" if shape == "mesh" or size < 4 else "ring"}


@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
@pytest.mark.parametrize("size", SIZES)
def test_every_hostfile_of_addresses_makes_a_ring(met: list[tuple[str, Environment]], size: int, parallel: str) -> None:
    texts = [f"127.0.0.{rank + 1}:{5000 + rank}" for rank in range(size)]
    split = (1,) * size if parallel == "pipeline" else None
    for content in (
        texts,
        [[text] for text in texts],
        [{"ssh": "x", "ips": [text]} for text in texts],
        {"hosts": texts},
    ):
        addresses = rank_addresses(parse_hostfile(content).hosts)
        assert set(join_all(met, spec_for(size, "ring", addresses, split=split))) == {"ring"}


def test_ranks_of_a_cluster_are_known_by_their_address_and_not_by_who_is_there(
    met: list[tuple[str, Environment]],
) -> None:
    ranks = ("id0@10.0.0.1:5000", "id1@10.0.0.2:5001")
    assert join_all(met, spec_for(2, "ring", ranks)) == ["ring", "ring"]
    assert join_all(met, spec_for(2, "jaccl", ranks, rdma_devices=[[None, "a"], ["b", None]])) == ["mesh", "mesh"]


def test_an_uncabled_cluster_gets_a_ring_over_tcp_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    nodes: list[Any] = [SimpleNamespace(name="mac1", node_id="id1")]
    bare = [Seen(Cabled("this machine")), Seen(Cabled("mac1"))]
    with caplog.at_level("INFO"):
        way = choose_way(nodes, spec_for(2, "ring"), False, None, False, bare[0], bare[1:])
    assert (way.transport, way.rdma_devices) == ("ring", None)
    assert "this machine has no RDMA device" in caplog.text


@pytest.mark.parametrize(
    "name", ["MLX_RANK", "MLX_HOSTFILE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING"]
)
def test_the_wheel_knows_the_variables(name: str) -> None:
    launcher = Path(config.__file__).with_name("launch.py").read_text()
    assert name in launcher


def changed(matrix: list[list[Any]], **variables: str | None) -> Environment:
    known = {"MLX_RANK": "0", "MLX_IBV_DEVICES": "x.json", "MLX_JACCL_COORDINATOR": "10.0.0.1:5", **variables}
    there = {name: text for name, text in known.items() if text is not None}
    return Environment(there, {"MLX_IBV_DEVICES": json.dumps(matrix)})


TWO = [[None, "a"], ["b", None]]


@pytest.mark.parametrize(
    "environment",
    [
        changed(TWO, MLX_RANK="2"),
        changed(TWO, JACCL_RANK="1"),
        changed(TWO, MLX_JACCL_COORDINATOR=None),
        changed(TWO, MLX_JACCL_COORDINATOR="[fe80::1]:5"),
        changed(TWO, MLX_JACCL_COORDINATOR="mac.local:5"),
        changed(TWO, MLX_METAL_FAST_SYNCH="1"),
        changed([[None, "a"], [None, None]]),
        changed([["c", "a"], ["b", None]]),
        changed([[None] * 4] * 4),
        changed([[None if a == b else "a" for b in range(9)] for a in range(9)]),
        changed([[None, list("abcde")], [list("abcde"), None]], MLX_JACCL_RING="1"),
    ],
)
def test_the_rules_find_what_mlx_would_not_take(environment: Environment) -> None:
    assert broken("jaccl", environment) != []
    assert broken("jaccl", changed(TWO)) == []
    assert len(RULES["jaccl"]) + len(RULES["ring"]) > 20
