"""The nodes of a cluster as its coordinator sees them: found, let in, connected, watched, for ever.

Addresses come from announcements, from the command line and from agents that call in. Whoever is behind one either
shows a certificate of this cluster, or proves the token and gets one, or is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from chorus import __version__
from chorus.cluster import agent_peers, trust_enrol
from chorus.cluster.agent_peers import Registry
from chorus.cluster.discovery import Announcement, Listener
from chorus.cluster.profile_links import LinkError, measure_member
from chorus.cluster.trust import Authority
from chorus.cluster.trust_enrol import Card
from chorus.cluster.trust_identity import CHANNEL_OPTIONS, Identity
from chorus.cluster.trust_join import JoinRefused
from chorus.proto import agent_pb2 as wire
from chorus.proto import agent_pb2_grpc

log = logging.getLogger("chorus.coordinator")

Address = tuple[str, int]
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
CALL_SECONDS = 10.0
SILENCE_SECONDS = 10.0
"""An agent that sends no heartbeat for so long is taken for lost."""
STILL_HERE_SECONDS = 1.0
SETTLE_SECONDS = 2.0
"""Where nobody said how many nodes there are: how long no new one may turn up before we go on."""
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]


class NodesMissing(Exception):
    """Nodes that were asked for did not come: names each, and what stood in the way."""


@dataclass
class Node:
    """A node that is there now."""

    card: Card
    address: Address
    own_ip: str
    """Our own address as that node sees it."""
    stub: agent_pb2_grpc.AgentStub
    state: wire.Node
    heard_at: float = field(default_factory=time.time)
    """For people; the clock may be set meanwhile."""
    heard: float = field(default_factory=time.monotonic)
    round_trip_ms: float = 0.0
    bandwidth: float | None = None
    """Bytes per second from there to here, measured once when the node came; None until then."""

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def host(self) -> str:
        return self.address[0]


class Nodes:
    def __init__(
        self,
        authority: Authority,
        identity: Identity,
        own_node_id: str,
        peers: Iterable[Address] = (),
        discover: bool = True,
        registry: Registry | None = None,
    ) -> None:
        self._authority = authority
        self._identity = identity
        self._own_node_id = own_node_id
        self._peers = tuple(peers)
        self._registry = registry
        self._listener = Listener(self._heard) if discover else None
        self._keepers: dict[Address, asyncio.Task[None]] = {}
        self._nodes: dict[str, Node] = {}
        self._problems: dict[Address, str] = {}
        self._changed = asyncio.Condition()
        self._last_change = time.monotonic()
        self._calls_in: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for address in self._peers:
            self._keep(address)
        if self._listener:
            await self._listener.start()
        if self._registry:
            self._calls_in = asyncio.create_task(self._follow_registry(self._registry))

    async def stop(self) -> None:
        if self._listener:
            await self._listener.stop()
        tasks = [*self._keepers.values(), *([self._calls_in] if self._calls_in else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def present(self) -> list[Node]:
        """Sorted by node id: the order of ranks wherever nobody gave another."""
        return sorted(self._nodes.values(), key=lambda node: node.card.node_id)

    def find(self, name: str) -> Node | None:
        return next((node for node in self._nodes.values() if name in (node.name, node.card.node_id)), None)

    async def gather(self, count: int | None, names: Iterable[str], timeout: float) -> list[Node]:
        """Wait for the named nodes, for every peer of the command line, for so many in all; names give the order."""
        order = tuple(names)
        wanted = set(order)
        await self._refresh()

        def enough() -> bool:
            usable = [node for node in self.present if not node.state.draining]
            if not {node.name for node in usable} >= wanted or self._missing_peers():
                return False
            if count is not None:
                return len(usable) >= count
            if wanted or self._peers:
                return True
            return bool(usable) and time.monotonic() - self._last_change >= SETTLE_SECONDS

        try:
            async with asyncio.timeout(timeout), self._changed:
                while not enough():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 0.25)
        except TimeoutError:
            raise NodesMissing(self._explain(count, wanted, timeout)) from None
        self._check_names()
        usable = self.usable(order)
        return usable[:count] if count is not None else usable

    async def _refresh(self) -> None:
        """A heartbeat may be a second old, and a node may have begun to drain since."""

        async def ask(node: Node) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
                node.state = await node.stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)

        await asyncio.gather(*(ask(node) for node in self.present))

    def usable(self, order: tuple[str, ...]) -> list[Node]:
        """The nodes that may get ranks: those named, in that order, or all of them by node id."""
        there = [node for node in self.present if not node.state.draining]
        if not order:
            return there
        return sorted((node for node in there if node.name in order), key=lambda node: order.index(node.name))

    def problems(self) -> dict[Address, str]:
        return {address: why for address, why in self._problems.items() if why != _OURSELVES}

    def _missing_peers(self) -> list[Address]:
        there = {node.address for node in self._nodes.values()}
        ours = {address for address in self._peers if self._problems.get(address) == _OURSELVES}
        return [address for address in self._peers if address not in there | ours]

    def _check_names(self) -> None:
        names = [node.name for node in self.present]
        for name in set(names):
            if names.count(name) > 1:
                raise NodesMissing(f"{names.count(name)} nodes call themselves {name}: give each its own --name")

    def _explain(self, count: int | None, wanted: set[str], timeout: float) -> str:
        there = {node.name for node in self._nodes.values()}
        missing = sorted(wanted - there) + [f"{host}:{port}" for host, port in self._missing_peers()]
        reasons = [f"{host}:{port}: {why}" for (host, port), why in self.problems().items()]
        draining = [node.name for node in self.present if node.state.draining]
        what = f"no {', no '.join(missing)}" if missing else f"{len(there)} nodes of {count or 1}"
        if draining:
            reasons.append(f"{', '.join(draining)} draining (chorus drain --undo)")
        hint = "; ".join(reasons) or "is `chorus join` running there, and does a firewall let us through?"
        return f"{what} within {timeout:g} s: {hint}"

    def _heard(self, announcement: Announcement) -> None:
        if announcement.node_id == self._own_node_id:
            return
        if not announcement.concerns(self._identity.cluster, self._authority.token.tag):
            log.debug("%s belongs to another cluster", announcement.name)
            return
        for address in announcement.addresses[:1]:
            self._keep((address, announcement.port))

    async def _follow_registry(self, registry: Registry) -> None:
        while True:
            for text in registry.addresses():
                host, _, port = text.rpartition(":")
                self._keep((host, int(port)))
            await asyncio.sleep(0.2)

    def _keep(self, address: Address) -> None:
        if address not in self._keepers:
            self._keepers[address] = asyncio.create_task(self._connect_for_ever(address))

    async def _connect_for_ever(self, address: Address) -> None:
        tries = 0
        while True:
            try:
                card, own_ip = await asyncio.to_thread(agent_peers.ask, address, self._identity)
                if card.node_id == self._own_node_id:
                    self._problems[address] = _OURSELVES
                    return
                if other := _elsewhere(self._nodes.get(card.node_id), address):
                    self._problems[address] = f"{card.name} is already connected at {other}"
                elif card.version != __version__:
                    both = f"{card.name} runs Chorus {card.version}, the coordinator {__version__}"
                    self._tell(address, f"{both}: install the same on both")
                else:
                    await self._stay(address, card, own_ip)
                    tries = 0
            except ssl.SSLCertVerificationError:
                await self._let_in(address)
            except JoinRefused as error:
                self._tell(address, f"{error}: was this coordinator's cluster joined there?")
            except (OSError, grpc.aio.AioRpcError) as error:
                self._tell(address, _reason(error))
            await asyncio.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1

    async def _let_in(self, address: Address) -> None:
        """Somebody without a certificate of ours: perhaps one who knows the token."""
        self._authority.refresh()
        try:
            await asyncio.to_thread(trust_enrol.dial_as_authority, address, self._authority)
        except JoinRefused as error:
            self._tell(address, f"{error}: is it the same token, and not a member of another cluster?")
        except OSError as error:
            self._tell(address, _reason(error))

    async def _stay(self, address: Address, card: Card, own_ip: str) -> None:
        target = f"{address[0]}:{card.control_port}"
        credentials = self._identity.channel_credentials()
        async with grpc.aio.secure_channel(target, credentials, [*_OPTIONS, *CHANNEL_OPTIONS]) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)
            await stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)  # the first one also shakes hands
            started = time.perf_counter()
            state = await stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)
            node = Node(card, address, own_ip, stub, state, round_trip_ms=(time.perf_counter() - started) * 1e3)
            self._problems.pop(address, None)
            self._nodes[card.node_id] = node
            log.info("%s is there, at %s:%d", card.name, *address)
            await self._notify()
            measuring = asyncio.create_task(self._measure(node))
            try:
                await self._listen(node)
            finally:
                measuring.cancel()
                del self._nodes[card.node_id]
                log.warning("%s is gone", card.name)
                await self._notify()

    async def _measure(self, node: Node) -> None:
        try:
            node.bandwidth = await asyncio.to_thread(measure_member, node.address, self._identity)
        except LinkError as error:
            log.warning("%s: %s", node.name, error)

    async def _listen(self, node: Node) -> None:
        """Take heartbeats until they stop, and pass on who has been expelled."""
        told: frozenset[str] = frozenset()
        beats = node.stub.Watch(still_here())
        try:
            while True:
                revoked = self._authority.revoked()
                if node.card.node_id in self._expelled(revoked):
                    raise OSError(f"{node.name} was expelled")
                if revoked != told:
                    self._identity.update_revoked(revoked)
                    await node.stub.Expel(wire.ExpelRequest(serials=sorted(revoked)), timeout=CALL_SECONDS)
                    told = revoked
                beat = await asyncio.wait_for(beats.read(), SILENCE_SECONDS)
                if beat is grpc.aio.EOF:
                    raise OSError("the agent ended")
                draining = node.state.draining
                node.state, node.heard_at, node.heard = beat.node, time.time(), time.monotonic()
                if beat.node.draining != draining:
                    await self._notify()
        except TimeoutError:
            raise OSError(f"no heartbeat for {SILENCE_SECONDS:g} s") from None
        finally:
            beats.cancel()

    def _expelled(self, revoked: frozenset[str]) -> set[str]:
        if not revoked:
            return set()
        serials: dict[str, set[str]] = {}
        for issued in self._authority.issued():
            serials.setdefault(issued.node_id, set()).add(issued.serial)
        return {node_id for node_id, known in serials.items() if known <= revoked}

    async def _notify(self) -> None:
        self._last_change = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    def _tell(self, address: Address, problem: str) -> None:
        if self._problems.get(address) != problem:
            self._problems[address] = problem
            log.warning("%s:%d: %s", *address, problem)


_OURSELVES = "this machine"


async def still_here(session: str = "") -> AsyncIterator[wire.WatchRequest]:
    """Our side of a Watch: an agent that hears nothing for a while takes us for lost."""
    while True:
        yield wire.WatchRequest(session=session)
        await asyncio.sleep(STILL_HERE_SECONDS)


def _elsewhere(node: Node | None, address: Address) -> str | None:
    return f"{node.address[0]}:{node.address[1]}" if node and node.address != address else None


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or "it refused our call: were we expelled?"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is `chorus join` running?"
    if isinstance(error, TimeoutError):
        return "no answer: is a firewall in between?"
    return str(error) or type(error).__name__
