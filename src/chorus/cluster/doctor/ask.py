"""Asks every node of a cluster how it is, and tries the links between them."""

from __future__ import annotations

import asyncio
import math
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from chorus import __version__
from chorus.cluster.agent import peers
from chorus.cluster.coordinator.calls import agent_of
from chorus.cluster.coordinator.process import ALREADY_AT
from chorus.cluster.doctor.finding import Finding, look
from chorus.cluster.doctor.links import CHECKS as LINK_CHECKS
from chorus.cluster.doctor.links import SLOWER, LinkFacts
from chorus.cluster.doctor.nodes import CHECKS as NODE_CHECKS
from chorus.cluster.doctor.nodes import Clock, NodeFacts, Release
from chorus.cluster.profile.assumed import AssumedLink
from chorus.cluster.profile.links import Door, Probe, address_of, measure_all, probe_of, reach_member
from chorus.config.hostfile import split_address
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.messages.proto import agent_pb2_grpc
from chorus.platform.accelerator import device
from chorus.platform.network.failures import reason
from chorus.platform.network.links import Address
from chorus.platform.network.links import addresses as own_addresses
from chorus.security.authority import Authority
from chorus.security.handshake import JoinRefused
from chorus.security.identity import CLOCK_SKEW, Identity
from chorus.security.member import NotTrusted
from chorus.security.node_folder import own_name

CALL_SECONDS = 10.0
PROBE_SECONDS = 60.0
ROUND_TRIPS = 5
"""Of these the quickest counts: its middle is nearest to the moment at which the node read its clock."""
MEASUREMENTS = 3
"""Of a link that seems slow."""
MOST_NODES = 256
MOST_LINKS = 64
MOST_LETTERS = 100


@dataclass(frozen=True)
class Known:
    """A node as its coordinator wrote it down."""

    name: str
    node_id: str
    door: Door
    running: frozenset[int]
    """Ranks that have loaded their part."""


@dataclass
class Cluster:
    """What a coordinator knows of its nodes, links and plan (cluster/status.py)."""

    own_id: str
    nodes: list[Known]
    links: list[AssumedLink]
    problems: dict[str, str]
    parts: dict[int, int] = field(default_factory=dict)
    """Bytes of the weights of each rank, as planned."""
    ranks_at: dict[str, list[int]] = field(default_factory=dict)
    """Ranks of each node, by its name, as planned."""

    @classmethod
    def read(cls, status: Mapping[str, Any]) -> Cluster:
        """What another release wrote may lack much: whatever is no node of ours is left out."""
        nodes = [known for told in _rows(status.get("nodes"))[:MOST_NODES] if (known := _known(told))]
        links = [link for told in _rows(status.get("links"))[:MOST_LINKS] if (link := AssumedLink.from_json(told))]
        problems = status.get("problems")
        found = cls(str(status.get("node_id", "")), nodes, links, dict(problems) if isinstance(problems, dict) else {})
        plan = status.get("plan")
        for rank in _rows(plan.get("ranks") if isinstance(plan, dict) else None):
            if isinstance(rank.get("rank"), int) and isinstance(rank.get("weight_bytes"), int):
                found.parts[rank["rank"]] = rank["weight_bytes"]
                found.ranks_at.setdefault(str(rank.get("node")), []).append(rank["rank"])
        return found

    def part_bytes(self, node_id: str) -> int:
        """What ranks of a node have still to fetch at most."""
        return sum(
            self.parts.get(rank, 0)
            for node in self.nodes
            for rank in self.ranks_at.get(node.name, ())
            if node.node_id == node_id and rank not in node.running
        )


def _rows(told: object) -> list[dict[str, Any]]:
    return [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []


def _known(told: Mapping[str, Any]) -> Known | None:
    try:
        host, port = split_address(str(told["address"]))
        ranks = [row for row in _rows(told.get("ranks")) if row.get("running") and row.get("current", True)]
        loaded = {row["rank"] for row in ranks if row.get("load_progress")}
        return Known(str(told["name"]), str(told["node_id"]), (host, port), frozenset(loaded)) if port else None
    except (KeyError, TypeError, ValueError):
        return None


def examine_cluster(status: Mapping[str, Any], models: Sequence[Mapping[str, Any]], state: Path) -> list[Finding]:
    """What there is to say of the nodes and links of a server whose coordinator wrote this status, and one for each
    model where it has several; `state` is the folder of its cluster.
    """
    identity = Authority(state / "authority").coordinator(own_name())
    return asyncio.run(_examine(Cluster.read(status), [Cluster.read(each) for each in models], identity))


async def _examine(cluster: Cluster, models: Sequence[Cluster], identity: Identity) -> list[Finding]:
    parts = {node.node_id: sum(each.part_bytes(node.node_id) for each in (cluster, *models)) for node in cluster.nodes}
    asked = await asyncio.gather(*(ask_node(node, identity, parts[node.node_id]) for node in cluster.nodes))
    findings = [finding for facts, _ in asked for finding in look(NODE_CHECKS, facts, facts.name)]
    for where, problem in absent(cluster).items():
        findings += look(NODE_CHECKS, NodeFacts(where, where, own_release(), problem=problem), where)
    told = {node.node_id: tuple(ends) for node, (_, ends) in zip(cluster.nodes, asked, strict=True)}
    there = {node.node_id: node for node, (facts, _) in zip(cluster.nodes, asked, strict=True) if not facts.problem}
    for link in once_each(cluster.links):
        # One after the other, so that none takes bytes from another's wire.
        if facts := await try_link(link, cluster.own_id, there, told, identity):
            findings += look(LINK_CHECKS, facts, f"{facts.sender} → {facts.receiver}")
    return findings


def absent(cluster: Cluster) -> dict[str, str]:
    """Addresses at which there should be a node that can be used, and why there is none; it has no name yet. What is
    told under "plan" is about none.
    """
    known = {"plan", *(f"{node.door[0]}:{node.door[1]}" for node in cluster.nodes)}
    return {
        where: str(problem)
        for where, problem in cluster.problems.items()
        if where not in known and ALREADY_AT not in str(problem)
    }


def once_each(links: Sequence[AssumedLink]) -> list[AssumedLink]:
    """Two machines that talk both ways are measured once."""
    first: dict[frozenset[str], AssumedLink] = {}
    for link in links:
        first.setdefault(link.ends, link)
    return list(first.values())


def own_release() -> Release:
    python = ".".join(map(str, sys.version_info[:3]))
    return Release(__version__, python, device.installed("mlx") or "", device.installed("mlx-lm") or "")


async def ask_node(known: Known, identity: Identity, part_bytes: int = 0) -> tuple[NodeFacts, list[Address]]:
    """A node as it says it is now, and its addresses. `part_bytes` is what it has still to fetch at most."""
    address = f"{known.door[0]}:{known.door[1]}"
    try:
        met = await peers.ask(known.door, identity)
        async with agent_of(met, identity) as stub:
            node = await stub.Describe(wire.DescribeRequest(software=True), timeout=CALL_SECONDS)
            quickest, clock = await read_clock(stub)
    except (OSError, JoinRefused, NotTrusted) as error:
        return NodeFacts(known.name, address, own_release(), problem=_reason(error)), []
    except grpc.aio.AioRpcError as error:
        return NodeFacts(known.name, address, own_release(), problem=why_failed(error, "it refused our call")), []
    facts = NodeFacts(
        known.name,
        address,
        own_release(),
        release=Release(
            plain(node.version), plain(node.python), plain(node.mlx), plain(node.mlx_lm), met.card.protocol
        ),
        clock=clock,
        most_skew=CLOCK_SKEW.total_seconds(),
        round_trip=quickest,
        up_seconds=node.up_seconds if math.isfinite(node.up_seconds) else 0.0,
        system=plain(node.system),
        device=plain(node.device),
        draining=node.draining,
        memory_total=node.memory_total,
        memory_available=node.memory_available,
        memory_booked=node.memory_booked,
        memory_held=sum(rank.memory_bytes for rank in node.ranks if rank.running),
        disk_free=node.disk_free,
        part_bytes=part_bytes,
    )
    return facts, [address_of(entry) for entry in node.addresses[:64]]


def plain(told: str) -> str:
    """What another machine says, as it can be shown on a terminal."""
    return "".join(letter for letter in told[:MOST_LETTERS] if letter.isprintable())


async def read_clock(stub: agent_pb2_grpc.AgentStub) -> tuple[float, Clock | None]:
    """The quickest round trip, and how far the node's clock was ahead of the middle of it."""
    quickest, best = float("inf"), None
    for _ in range(ROUND_TRIPS):
        # Our own clock may be set meanwhile: what a question takes is told by the one that never is.
        began, asked_at = time.perf_counter(), time.time()
        node = await stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)
        took = time.perf_counter() - began
        if took < quickest:
            quickest = took
            best = (
                Clock(node.clock - (asked_at + took / 2), took / 2)
                if node.clock and math.isfinite(node.clock)
                else None
            )
    return quickest, best


async def try_link(
    link: AssumedLink,
    own_id: str,
    there: Mapping[str, Known],
    told: Mapping[str, tuple[Address, ...]],
    identity: Identity,
) -> LinkFacts | None:
    """From its sender, or from here where this machine is one of its ends; None where one is not there any more."""
    if own_id in link.ends:
        (other,) = link.ends - {own_id} or {own_id}
        if other not in there:
            return None
        node = there[other]
        # Where the node sends and we receive, its own address is not written down: it is the one we know.
        door = (link.ip if link.receiver == other else node.door[0], node.door[1])
        names = ("this machine", node.name)

        async def tried(measure: bool) -> Probe:
            found = await asyncio.to_thread(measure_all if measure else reach_member, [door], other, identity)
            return found[0]

        probe = await best_of(tried, link)
    elif link.sender in there and link.receiver in there:
        sender, receiver = there[link.sender], there[link.receiver]
        door, names = (link.ip, receiver.door[1]), (sender.name, receiver.name)
        probe = await _try_there(link, sender, receiver, door, identity)
    else:
        return None
    known = [*own_addresses(), *(address for several in told.values() for address in several)]
    ends = tuple(address for address in known if address.ip in (door[0], probe.own_ip))
    return LinkFacts(*names, link, probe, ends)


async def _try_there(link: AssumedLink, sender: Known, receiver: Known, door: Door, identity: Identity) -> Probe:
    addresses = [f"{door[0]}:{door[1]}"]
    try:
        async with agent_of(await peers.ask(sender.door, identity), identity) as stub:

            async def tried(measure: bool) -> Probe:
                request = wire.ProbeRequest(node_id=receiver.node_id, addresses=addresses, measure=measure)
                reply = await stub.Probe(request, timeout=PROBE_SECONDS)
                return probe_of(reply.addresses[0]) if reply.addresses else Probe("not tried")

            return await best_of(tried, link)
    except (OSError, JoinRefused, NotTrusted) as error:
        return Probe(_reason(error))
    except grpc.aio.AioRpcError as error:
        return Probe(f"{sender.name} did not try it: {why_failed(error, 'its agent is gone')}")


async def best_of(tried: Callable[[bool], Awaitable[Probe]], link: AssumedLink) -> Probe:
    """How soon the other end answers, and the best of a few measurements: other work can only slow one down. `tried`
    measures, or only tries.
    """
    reached = await tried(False)
    if reached.problem:
        return reached
    best = 0.0
    for _ in range(MEASUREMENTS):
        measured = await tried(True)
        best = max(best, measured.bandwidth or 0.0)
        if link.bandwidth is None or best >= SLOWER * link.bandwidth:
            break
    return Probe("" if best else measured.problem, reached.own_ip, reached.round_trip, best or None)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # As SSLV3_ALERT_CERTIFICATE_EXPIRED.
        return f"it refuses us: {(error.reason or str(error)).rpartition('ALERT_')[2].replace('_', ' ').lower()}"
    return reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__
