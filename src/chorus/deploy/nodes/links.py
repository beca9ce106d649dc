"""By which address each rank reaches each other rank: all that a node has are tried, and the quickest one is used.

It is the sender that tries, on its own machine: what the coordinator sees says little about two other nodes. All this
happens before anything is loaded, so that two ranks without a way to each other cost nobody any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc.aio

from chorus.cluster.agent.service import MAX_PROBED
from chorus.cluster.coordinator.process import ConnectedNode
from chorus.cluster.discovery import own_addresses
from chorus.cluster.profile.links import Door, Probe, address_of, bits, measure_all, probe_of, reach_member
from chorus.errors import ChorusError
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.planning.layout import Layout, shape
from chorus.platform.network.links import KINDS, Address, Kind, slower
from chorus.security.identity import Identity
from chorus.transport import catalog

log = logging.getLogger("chorus.coordinator")

PROBE_SECONDS = 60.0
"""How long a node may take to try or measure the addresses of one other."""
ALIKE = 0.7
"""Links whose bandwidths differ less than this are equally quick as far as a measurement over TLS can tell: the kind
decides.
"""

Pair = tuple[int, int]
"""The ranks that send and receive."""
Tried = tuple[Sequence[Address], list[Probe]]
"""The addresses of a receiver, and what became of each."""


class NoWay(ChorusError):
    """Two ranks that must talk have no address that works: names both, what was tried, and the remedy."""


@dataclass(frozen=True)
class Route:
    """How one rank reaches another."""

    ip: str
    kind: Kind = ""
    round_trip: float = 0.0
    bandwidth: float | None = None
    """Bytes per second; None where there was only one way, which nobody needed to measure."""

    def __str__(self) -> str:
        return f"{self.kind} {self.ip}".strip() + (f", {bits(self.bandwidth)}" if self.bandwidth else "")


Routes = Mapping[Pair, Route]


@dataclass(frozen=True)
class Place:
    """A rank's machine, as somebody must know it who wants to reach it."""

    name: str
    node_id: str
    port: int
    """Of its door."""
    addresses: tuple[Address, ...]
    """All that it says it has, and where it was met."""
    probe: Callable[[str, Sequence[Door], bool], Awaitable[list[Probe]]]
    """Tries addresses of another node from there, or measures them."""


def talking_pairs(transport: str, parallel: str, ranks: int) -> frozenset[Pair]:
    """Who dials whom in a group: the leader everybody, each stage the next one, and what the transport adds."""
    stages, members = shape(parallel, ranks)
    layout = Layout((1,) * stages, (1,) * members)
    places = [layout.place(rank) for rank in range(ranks)]
    stage_by_stage = {(place.rank, place.next_rank) for place in places if place.next_rank is not None}
    return frozenset({(0, rank) for rank in range(1, ranks)} | stage_by_stage | catalog.get(transport).pairs(ranks))


def quickest(candidates: Sequence[Address], probes: Sequence[Probe], sender: Iterable[Address]) -> Route | None:
    """The best of the addresses that work: by what was measured, and by their kind where that is about the same."""
    own = {address.ip: address.kind for address in sender}
    working = [
        Route(at.ip, slower(at.kind, own.get(probe.own_ip, at.kind)), probe.round_trip, probe.bandwidth)
        for at, probe in zip(candidates, probes, strict=True)
        if not probe.problem
    ]
    best = max((route.bandwidth or 0.0 for route in working), default=0.0)
    alike = [route for route in working if (route.bandwidth or 0.0) >= ALIKE * best]
    return min(alike, key=lambda route: (KINDS.index(route.kind), route.round_trip), default=None)


def explain(pair: Pair, places: Sequence[Place], candidates: Sequence[Address], probes: Sequence[Probe]) -> str:
    sender, receiver = (places[rank] for rank in pair)
    tried = ", ".join(f"{at.ip} ({probe.problem})" for at, probe in zip(candidates, probes, strict=True))
    return (
        f"rank {pair[0]} on {sender.name} cannot reach rank {pair[1]} on {receiver.name}, tried {tried}: connect them "
        f"by a cable or a network, let TCP port {receiver.port} and those after it through any firewall, or leave one "
        "of them out"
    )


def matrix(routes: Routes, ranks: int) -> tuple[str, ...]:
    """As a leader is told: at which host each rank reaches each, row by row."""
    chosen = {pair: route.ip for pair, route in routes.items()}
    return tuple(chosen.get((one, other), "") for one in range(ranks) for other in range(ranks))


async def find_routes(places: Sequence[Place], needed: frozenset[Pair]) -> Routes:
    """The quickest way of each pair that talks, and of each rank to rank 0, where it may copy files; raises NoWay."""
    pairs = sorted(needed | {(rank, 0) for rank in range(1, len(places))})
    reached = await _reach_all(places, pairs)
    # Once more: a machine that was busy or asleep may have come too late.
    reached |= await _reach_all(places, [pair for pair in _lost(reached) if pair in needed])
    if lost := [explain(pair, places, *reached[pair]) for pair in _lost(reached) if pair in needed]:
        raise NoWay("; ".join(lost))
    # A machine that is measured from two sides at once would look half as quick.
    busy = [asyncio.Lock() for _ in places]
    measured = await asyncio.gather(*(_measure(places, pair, busy, *reached[pair]) for pair in pairs))
    routes = {pair: route for pair, route in zip(pairs, measured, strict=True) if route}
    for pair in sorted(needed):
        log.info("rank %d -> rank %d over %s", *pair, routes[pair])
    return routes


async def _reach_all(places: Sequence[Place], pairs: Sequence[Pair]) -> dict[Pair, Tried]:
    async def reach(pair: Pair) -> Tried:
        sender, receiver = (places[rank] for rank in pair)
        candidates = receiver.addresses[:MAX_PROBED]
        doors = [(address.ip, receiver.port) for address in candidates]
        return candidates, await sender.probe(receiver.node_id, doors, False)

    return dict(zip(pairs, await asyncio.gather(*map(reach, pairs)), strict=True))


def _lost(reached: Mapping[Pair, Tried]) -> list[Pair]:
    return [pair for pair, (_, probes) in sorted(reached.items()) if all(probe.problem for probe in probes)]


async def _measure(
    places: Sequence[Place],
    pair: Pair,
    busy: Sequence[asyncio.Lock],
    candidates: Sequence[Address],
    probes: list[Probe],
) -> Route | None:
    sender, receiver = (places[rank] for rank in pair)
    working = [index for index, probe in enumerate(probes) if not probe.problem]
    if len(working) > 1:
        doors = [(candidates[index].ip, receiver.port) for index in working]
        async with busy[min(pair)], busy[max(pair)]:
            told = await sender.probe(receiver.node_id, doors, True)
        for index, probe in zip(working, told, strict=True):
            probes[index] = Probe(probe.problem, probes[index].own_ip, probes[index].round_trip, probe.bandwidth)
        if all(probe.problem for probe in probes):
            return None
    return quickest(candidates, probes, sender.addresses)


def own_place(identity: Identity, node_id: str, port: int, host: str, nodes: Sequence[ConnectedNode]) -> Place:
    """This machine, which serves: at its own addresses, and at those under which nodes see it."""

    async def probe(other: str, doors: Sequence[Door], measure: bool) -> list[Probe]:
        return await asyncio.to_thread(measure_all if measure else reach_member, doors, other, identity)

    addresses = _merged(own_addresses(host), (node.own_ip for node in nodes))
    return Place("this machine", node_id, port, addresses, probe)


def place_of(node: ConnectedNode) -> Place:
    """A node: at all the addresses on its card, and where we met it."""

    async def probe(other: str, doors: Sequence[Door], measure: bool) -> list[Probe]:
        request = wire.ProbeRequest(node_id=other, addresses=[f"{ip}:{port}" for ip, port in doors], measure=measure)
        try:
            reply = await node.stub.Probe(request, timeout=PROBE_SECONDS)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            return [Probe(f"{node.name} did not try it: {why_failed(error, 'its agent is gone')}")] * len(doors)
        found = [probe_of(entry) for entry in reply.addresses[: len(doors)]]
        return found + [Probe("not tried")] * (len(doors) - len(found))

    told = tuple(address_of(entry) for entry in node.state.addresses[:MAX_PROBED])
    return Place(node.name, node.node_id, node.address[1], _merged(told, [node.address[0]]), probe)


def _merged(told: tuple[Address, ...], met: Iterable[str]) -> tuple[Address, ...]:
    """Where it was met comes first: of too many, the last are not tried."""
    known = {address.ip: address for address in told}
    first = [known.pop(ip, Address(ip)) for ip in dict.fromkeys(met)]
    return (*first, *known.values())
