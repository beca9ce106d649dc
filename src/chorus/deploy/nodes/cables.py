"""By which RDMA devices the ranks of a cluster reach each other, found from how its machines are cabled."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from chorus.cluster.coordinator.process import ConnectedNode
from chorus.config.engine import EngineSpec
from chorus.deploy.supervisor import GaveUp
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.network import rdma
from chorus.platform.network.ports import free_port
from chorus.transport import catalog
from chorus.transport.auto import auto_over_machines
from chorus.transport.cables import Cabled, Device, NotCabled, meeting_address
from chorus.transport.cables import wire as wired

log = logging.getLogger("chorus.coordinator")

LOOK_SECONDS = 90.0
"""Each of a Mac's tools has its own, shorter time."""
MAX_PORTS = 64

Matrix = tuple[tuple[Device, ...], ...]


@dataclass(frozen=True)
class Way:
    """How the ranks of a cluster exchange tensors."""

    transport: str
    nodes: list[ConnectedNode]
    """In rank order, from rank 1 on."""
    rdma_devices: Matrix | None = None
    meeting_host: str | None = None
    """Where ranks meet before they use RDMA; None: at the leader's address."""

    def new_meeting_place(self) -> str | None:
        return f"{self.meeting_host}:{free_port(self.meeting_host)}" if self.meeting_host else None


@dataclass(frozen=True)
class Seen:
    """A machine's cables, and the addresses at which ranks may meet there."""

    cabled: Cabled
    addresses: tuple[str, ...] = ()


async def find_way(
    nodes: list[ConnectedNode], spec: EngineSpec, chosen: bool, given: Matrix | None, keep_order: bool
) -> Way:
    """`chosen`: the spec's transport was asked for and holds. `given` are devices that the configuration names."""
    if not nodes or (chosen and not catalog.get(spec.transport).rdma):
        return Way(spec.transport, nodes)
    if not chosen and spec.parallel != "tensor":
        return Way(auto_over_machines(spec.parallel, "").transport, nodes)
    own, *others = await asyncio.gather(asyncio.to_thread(_look_here), *map(_ask, nodes))
    return choose_way(nodes, spec, chosen, given, keep_order, own, others)


def choose_way(
    nodes: list[ConnectedNode],
    spec: EngineSpec,
    chosen: bool,
    given: Matrix | None,
    keep_order: bool,
    own: Seen,
    others: Sequence[Seen],
) -> Way:
    name, host = catalog.over_rdma().name, meeting_address(own.addresses, [seen.addresses for seen in others])
    if given is not None and len(given) == len(nodes) + 1:
        return Way(name, nodes, given, host)
    try:
        wiring = wired([own.cabled, *(seen.cabled for seen in others)], keep_order)
    except NotCabled as error:
        if chosen:
            raise GaveUp(str(error)) from None
        choice = auto_over_machines(spec.parallel, str(error))
        log.info("ranks use %s: %s", choice.transport, choice.why)
        return Way(choice.transport, nodes)
    order = [nodes[machine - 1] for machine in wiring.order[1:]]
    log.info(
        "ranks use %s: the cables make a %s of %s",
        name,
        wiring.shape,
        ", ".join(["this machine", *(node.name for node in order)]),
    )
    return Way(name, order, wiring.devices, host)


def _look_here() -> Seen:
    seen = rdma.look()
    return Seen(Cabled("this machine", rdma.ports(seen)), rdma.meeting_addresses(seen))


async def _ask(node: ConnectedNode) -> Seen:
    try:
        told = await node.stub.Describe(wire.DescribeRequest(cables=True), timeout=LOOK_SECONDS)
    except (grpc.aio.AioRpcError, grpc.aio.UsageError):
        log.warning("%s does not say how it is cabled", node.name)
        return Seen(Cabled(node.name))
    return seen_at(node.name, told)


def seen_at(name: str, told: wire.Node) -> Seen:
    ports = [rdma.RdmaPort(p.device, p.own_end, p.other_end, p.obstacle) for p in told.rdma_ports[:MAX_PORTS]]
    return Seen(
        Cabled(name, tuple(ports)), tuple(text for text in told.meeting_addresses[:MAX_PORTS] if _is_address(text))
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True
