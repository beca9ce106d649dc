"""By which address each rank reaches each other: decided by what the ranks' own machines have tried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.cluster.profile.links import Door, Probe, bits
from chorus.deploy.nodes.links import (
    NoWay,
    Place,
    Route,
    find_routes,
    matrix,
    place_of,
    quickest,
    talking_pairs,
)
from chorus.deploy.nodes.plan import HERE, links_between
from chorus.messages.proto import agent_pb2 as wire
from chorus.planning.costs import ETHERNET
from chorus.platform.network.links import Address, Kind

THUNDERBOLT = Address("169.254.3.4", "bridge0", "thunderbolt")
WIRED = Address("192.168.1.5", "en0", "ethernet")
WIFI = Address("192.168.1.6", "en1", "wifi")
VPN = Address("100.64.0.7", "utun4", "vpn")


def test_who_talks_depends_on_the_transport() -> None:
    from_leader = {(0, 1), (0, 2), (0, 3)}
    chain = {(1, 0), (2, 1), (3, 2)}
    assert talking_pairs("grpc", "pipeline", 4) == from_leader | chain
    assert talking_pairs("ring", "pipeline", 4) == from_leader | chain | {(1, 2), (2, 3), (3, 0)}
    assert talking_pairs("ring", "tensor", 4) == from_leader | {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert talking_pairs("jaccl", "tensor", 3) == {(0, 1), (0, 2), (1, 0), (2, 0)}
    assert len(talking_pairs("nccl", "tensor", 4)) == 12
    assert talking_pairs("grpc", "pipeline", 1) == frozenset()


def test_the_quickest_is_what_was_measured_and_among_equals_the_better_cable() -> None:
    known = (VPN, WIFI, WIRED, THUNDERBOLT)

    def chosen(*bandwidths: float | None) -> str:
        probes = [Probe("" if rate is not None else "no answer", "", 0.001, rate) for rate in bandwidths]
        route = quickest(known, probes, ())
        return route.kind if route else "none"

    assert chosen(1e7, 4e7, 1.2e8, 9e8) == "thunderbolt"
    assert chosen(1e7, 4e7, 1.1e9, 9e8) == "thunderbolt", "what a processor can encrypt hides the difference"
    assert chosen(1e7, 4e7, 1.1e9, 2e8) == "ethernet", "a bad cable"
    assert chosen(None, 4e7, None, None) == "wifi"
    assert chosen(None, None, None, None) == "none"


def test_a_link_is_what_its_slower_end_is() -> None:
    probe = Probe("", WIFI.ip, 0.002, 4e7)
    route = quickest([WIRED], [probe], [WIFI, VPN])
    assert str(route) == "wifi 192.168.1.5, 320 Mbit/s"
    assert bits(3.9e9) == "31.2 Gbit/s"


class Desk:
    """Machines and the pairs of addresses between which there is a wire, with its bytes per second."""

    def __init__(self, *addresses: tuple[str, ...]) -> None:
        self.wires: dict[tuple[int, str], float] = {}
        self.asked: list[tuple[int, str, bool]] = []
        self.places = [self._place(rank, ips) for rank, ips in enumerate(addresses)]

    def _place(self, rank: int, ips: tuple[str, ...]) -> Place:
        async def probe(node_id: str, doors: Sequence[Door], measure: bool) -> list[Probe]:
            self.asked += [(rank, ip, measure) for ip, _ in doors]
            rates = [self.wires.get((rank, ip)) for ip, _ in doors]
            return [Probe("", "", 0.001, rate if measure else None) if rate else Probe("no answer") for rate in rates]

        kind: Kind = "ethernet"
        return Place(f"host{rank}", f"id{rank}", 50150, tuple(Address(ip, "", kind) for ip in ips), probe)

    def find(self, transport: str = "grpc") -> dict[tuple[int, int], Route]:
        return dict(asyncio.run(find_routes(self.places, talking_pairs(transport, "pipeline", len(self.places)))))


@pytest.fixture
def desk() -> Desk:
    """A subnet per cable, and a VPN that leads nowhere."""
    made = Desk(("10.1.0.1", "10.2.0.1"), ("100.64.0.2", "10.1.0.2", "10.3.0.2"), ("10.2.0.3", "10.3.0.3"))
    made.wires = dict.fromkeys(
        [(0, "10.1.0.2"), (1, "10.1.0.1"), (0, "10.2.0.3"), (2, "10.2.0.1"), (1, "10.3.0.3"), (2, "10.3.0.2")], 1e9
    )
    return made


def test_every_pair_gets_an_address_that_works_between_the_two(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    routes = desk.find()
    assert matrix(routes, 3) == ("", "10.1.0.2", "10.2.0.3", "10.1.0.1", "", "", "10.2.0.1", "10.3.0.2", "")
    assert "rank 2 -> rank 1 over ethernet 10.3.0.2" in caplog.text
    assert not any(measure for _, _, measure in desk.asked), "where there is one way, nothing needs to be measured"


def test_of_two_ways_the_quicker_is_taken_and_said(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    desk.wires[2, "10.1.0.2"] = 5e6
    assert desk.find()[2, 1].ip == "10.3.0.2"
    assert "rank 2 -> rank 1 over ethernet 10.3.0.2, 8 Gbit/s" in caplog.text
    assert {(rank, ip) for rank, ip, measure in desk.asked if measure} == {(2, "10.1.0.2"), (2, "10.3.0.2")}


def test_a_pair_without_a_way_is_named_with_what_was_tried_and_the_remedy(desk: Desk) -> None:
    del desk.wires[2, "10.3.0.2"]
    with pytest.raises(NoWay) as refused:
        desk.find()
    assert str(refused.value).startswith(
        "rank 2 on host2 cannot reach rank 1 on host1, tried 100.64.0.2 (no answer), 10.1.0.2 (no answer), "
        "10.3.0.2 (no answer): connect them by a cable"
    )
    assert "50150" in str(refused.value)


def test_files_need_no_way_that_ranks_do_not_use(desk: Desk) -> None:
    """Rank 2 sends to rank 1 alone: that it cannot reach rank 0 is no reason to refuse."""
    del desk.wires[2, "10.2.0.1"]
    assert (2, 0) not in desk.find()
    with pytest.raises(NoWay, match="rank 2 on host2 cannot reach rank 0"):
        desk.find("ring")


def test_a_node_is_believed_within_reason() -> None:
    told = [
        wire.NodeAddress(ip="10.0.0.2", kind="thunderbolt"),
        wire.NodeAddress(ip="10.0.0.9", kind="teleport"),
    ]
    answers = [wire.ProbedAddress(round_trip_seconds=float("nan"), bytes_per_second=float("inf"))]

    class Stub:
        async def Probe(self, request: wire.ProbeRequest, timeout: float) -> wire.ProbeReply:
            return wire.ProbeReply(addresses=answers)

    node: Any = SimpleNamespace(
        name="mini", node_id="id", address=("10.0.0.9", 50150), state=wire.Node(addresses=told), stub=Stub()
    )
    place = place_of(node)
    assert place.addresses == (Address("10.0.0.9"), Address("10.0.0.2", "", "thunderbolt"))
    found = asyncio.run(place.probe("other", [("10.0.0.1", 1), ("10.0.0.3", 1)], True))
    assert found == [Probe("", "", 0.0, None), Probe("not tried")]


def test_the_planner_gets_what_was_measured_on_the_way_that_is_used() -> None:
    def node(name: str) -> Any:
        met = SimpleNamespace(ip=f"wifi-of-{name}")
        return SimpleNamespace(name=name, node_id=name, met=met, round_trip_ms=8.0, bandwidth=2e7)

    nodes = [node("a"), node("b")]
    as_ever = links_between(nodes, "grpc", {})
    assert as_ever.between(HERE, "a").bandwidth == 2e7
    assert as_ever.between("a", "b") == ETHERNET
    routes = {
        (0, 1): Route("10.1.0.2", "thunderbolt", 0.0002, 3e9),
        (0, 2): Route("wifi-of-b", "wifi", 0.003),
        (2, 1): Route("10.3.0.2", "ethernet", 0.0004, 1e9),
    }
    links = links_between(nodes, "grpc", routes)
    assert links.between(HERE, "a").bandwidth == 3e9
    assert links.between(HERE, "a").latency < 0.001
    assert links.between(HERE, "b").bandwidth == 2e7
    assert links.between("a", "b").bandwidth == 1e9
