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
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import grpc.aio

from chorus import __version__
from chorus.cluster.agent import peers as agent_peers
from chorus.cluster.agent.peers import Met, Registry
from chorus.cluster.discovery import Announcement, Listener
from chorus.cluster.profile.assumed import AssumedLink
from chorus.cluster.profile.links import LinkError, measure_member
from chorus.errors import ChorusError
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.messages.proto import agent_pb2_grpc
from chorus.messages.protocol import misfit
from chorus.platform.process.looks import Looks
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.security import enrol
from chorus.security.authority import Authority
from chorus.security.handshake import JoinRefused
from chorus.security.identity import Identity
from chorus.security.member import NotTrusted
from chorus.security.names import member_address, server_name
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger("chorus.coordinator")

Address = tuple[str, int]
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
STALE_RETRY_SECONDS = (*RETRY_SECONDS, 5.0, 10.0, 30.0)
"""For announced nodes that were never met: an announcement may outlive its node by an hour."""
MAX_ANNOUNCED = 256
MAX_ADDRESSES = 32
"""How many addresses of one announcement are tried, all at once; the first that answers is used."""
STRANGER_SECONDS = 1.0
"""How long the other addresses of a node may keep it waiting to be let in."""
MAX_ASKED = 256
"""How many addresses are asked at once."""
DIALLERS = 8
LOOK_SECONDS = 0.5
"""How often a coordinator looks at what other processes and threads change."""
STEADY_SECONDS = 5.0
"""A connection that lasted so long was a good one: when it breaks, the node is looked for at once."""
CALL_SECONDS = 10.0
SETTLE_SECONDS = 2.0
"""Where nobody said how many nodes there are: how long no new one may turn up before we go on."""
# The connection of a node that falls silent is closed, which ends the calls to it: they need no deadline of their own.
_OPTIONS = [("grpc.enable_http_proxy", 0)]


class NodesMissing(ChorusError):
    """Nodes that were asked for did not come: names each, and what stood in the way."""


@dataclass
class ConnectedNode:
    """A node that we are connected with, known by its certificate."""

    met: Met
    address: Address
    """The quickest way to its door that is known so far, by number and never by name."""
    stub: agent_pb2_grpc.AgentStub
    state: wire.Node
    heard_at: float = field(default_factory=time.time)
    """The time of its last heartbeat, for people; the clock may be set meanwhile."""
    heard: float = field(default_factory=time.monotonic)
    round_trip_ms: float = 0.0
    bandwidth: float | None = None
    """Bytes per second from there to here, measured once when the node came; None until then."""

    @property
    def name(self) -> str:
        return self.met.member.name

    @property
    def node_id(self) -> str:
        return self.met.member.node_id

    @property
    def own_ip(self) -> str:
        """Our own address as that node sees it."""
        return self.met.own_ip

    @property
    def door(self) -> str:
        return member_address(self.node_id, *self.address)

    def use(self, ip: str, bandwidth: float | None) -> None:
        """Reach its door and its ranks at this address from now on."""
        self.address = (ip, self.address[1])
        self.bandwidth = bandwidth or self.bandwidth

    def rank_address(self, port: int) -> str:
        return member_address(self.node_id, self.address[0], port)


class Nodes:
    def __init__(
        self,
        authority: Authority,
        identity: Identity,
        own_node_id: str,
        peers: Iterable[Address] = (),
        discover: bool = True,
        registry: Registry | None = None,
        timing: WatchTimes = DEFAULTS,
        hints: Iterable[Address] = (),
    ) -> None:
        self._authority = authority
        self._identity = identity
        self.own_node_id = own_node_id
        """The id of the node whose door this process has open."""
        self._peers = tuple(peers)
        self._hints = tuple(hints)
        """Where nodes are said to be, besides; nobody waits for one that is not."""
        self._registry = registry
        self.timing = timing
        self._listener = Listener(self._heard, self._unheard) if discover else None
        self._announced: dict[str, tuple[Address, ...]] = {}
        """Addresses by what an announcement calls its node, which is a hint and no more."""
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._nodes: dict[str, ConnectedNode] = {}
        self._seen_at: dict[Address, str] = {}
        """Which node last answered at an address."""
        self._problems: dict[Address, str] = {}
        self.assumed: dict[tuple[str, str], AssumedLink] = {}
        """What models were divided by, of each link that their ranks use, by the ids of its ends."""
        self._changed = asyncio.Condition()
        self._last_change = time.monotonic()
        self._following: asyncio.Task[None] | None = None
        self.users: set[Callable[[str], float]] = set()
        """Whoever uses nodes tells when, by our clock, something was last finished that the node of an id had a part
        in."""
        self._asking = asyncio.Semaphore(MAX_ASKED)
        # Candidates that fall silent hold their threads for seconds: nothing else may wait for those.
        self._diallers = ThreadPoolExecutor(DIALLERS, thread_name_prefix="let-in")

    async def start(self) -> None:
        for address in dict.fromkeys((*self._peers, *self._hints)):
            self._keep(f"peer {address}", lambda address=address: (address,))  # type: ignore[misc]
        if self._listener:
            await self._listener.start()
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._listener:
            await self._listener.stop()
        tasks = [*self._keepers.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._diallers.shutdown(wait=False, cancel_futures=True)

    @property
    def present(self) -> list[ConnectedNode]:
        """The connected nodes by node id, which is the order of ranks wherever nobody gave another."""
        return sorted(self._nodes.values(), key=lambda node: node.node_id)

    def find(self, name: str) -> ConnectedNode | None:
        # A copy: who counts memory asks from another thread.
        return next((node for node in tuple(self._nodes.values()) if name in (node.name, node.node_id)), None)

    async def gather(self, count: int | None, names: Iterable[str], timeout: float) -> list[ConnectedNode]:
        """Wait for the named nodes, for every peer of the command line, for so many in all; names give the order."""
        order = tuple(names)
        wanted = set(order)
        await self.refresh()

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

    async def refresh(self) -> None:
        """Ask every node for its state: a heartbeat may be late, and the node may have begun to drain since."""

        async def ask(node: ConnectedNode) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
                node.state = await node.stub.Describe(wire.DescribeRequest(), timeout=self.timing.agent_silence_seconds)

        await asyncio.gather(*(ask(node) for node in self.present))

    def usable(self, order: tuple[str, ...]) -> list[ConnectedNode]:
        """The nodes that may get ranks: those named, in that order, or all of them by node id."""
        there = [node for node in self.present if not node.state.draining]
        if not order:
            return there
        return sorted((node for node in there if node.name in order), key=lambda node: order.index(node.name))

    def problems(self) -> dict[Address, str]:
        return {address: why for address, why in self._problems.items() if why != _OURSELVES}

    def _missing_peers(self) -> list[Address]:
        ours = {address for address in self._peers if self._problems.get(address) == _OURSELVES}
        return [a for a in self._peers if a not in ours and self._seen_at.get(a) not in self._nodes]

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
        return f"{what} within {timeout:g} s (engine.start_timeout_seconds): {hint}"

    def _heard(self, announcement: Announcement) -> None:
        hint = announcement.node_id
        if hint == self.own_node_id or hint in self._identity.expelled():
            return
        if not announcement.concerns(self._identity.cluster, self._authority.token.tag):
            log.debug("%s belongs to another cluster", announcement.name)
            return
        if hint not in self._announced and len(self._announced) >= MAX_ANNOUNCED:
            log.warning(
                "%s is announced, and %d others were before it: name it with --peer", announcement.name, MAX_ANNOUNCED
            )
            return
        self._announced[hint] = tuple((ip, announcement.port) for ip in announcement.addresses[:MAX_ADDRESSES])
        self._keep(f"announced {hint}", lambda: self._announced.get(hint, ()), STALE_RETRY_SECONDS)

    def _unheard(self, hint: str) -> None:
        self._announced.pop(hint, None)

    async def _follow(self) -> None:
        """Look again and again at what others change: expulsions, our own certificate, who has called in."""
        while True:
            self._keep_identity()
            for text in self._registry.addresses() if self._registry else ():
                self._keep_caller(text)
            await asyncio.sleep(LOOK_SECONDS)

    def _keep_identity(self) -> None:
        try:
            self._authority.keep(self._identity)
        except OSError as error:
            self._tell(_HERE, f"cannot keep up the certificate and the list of expelled nodes: {error}")
        else:
            self._problems.pop(_HERE, None)

    def _keep_caller(self, text: str) -> None:
        host, _, port = text.rpartition(":")
        where = ((host, int(port)),)
        registry = self._registry
        assert registry is not None
        self._keep(f"caller {text}", lambda: where if text in registry.addresses() else ())

    def _keep(self, key: str, where: Callable[[], tuple[Address, ...]], pauses: tuple[float, ...] = ()) -> None:
        """Stay connected with whoever is at one of these addresses, until there is none left to try."""
        if key not in self._keepers:
            task = asyncio.create_task(self._connect_while(where, pauses or RETRY_SECONDS))
            self._keepers[key] = task
            task.add_done_callback(lambda _: self._keepers.pop(key, None))

    async def _connect_while(self, where: Callable[[], tuple[Address, ...]], pauses: tuple[float, ...]) -> None:
        tries, tried = 0, set[Address]()
        try:
            while addresses := where():
                tried |= set(addresses)
                began = time.monotonic()
                if await self._connect(addresses) and time.monotonic() - began > STEADY_SECONDS:
                    tries, pauses = 0, RETRY_SECONDS
                await asyncio.sleep(pauses[min(tries, len(pauses) - 1)])
                tries += 1
        finally:
            for address in tried - set(self._peers):
                self._problems.pop(address, None)
                self._seen_at.pop(address, None)

    async def _connect(self, addresses: tuple[Address, ...]) -> bool:
        """Stay connected with the node there for as long as it lasts; answers whether there was one that we can use."""
        address, met = await self._first_to_answer(addresses)
        if met is None:
            return False
        member, self._seen_at[address] = met.member, met.member.node_id
        try:
            if member.node_id == self.own_node_id:
                self._problems[address] = _OURSELVES
            elif other := self._nodes.get(member.node_id):
                self._problems[address] = f"{member.name} {ALREADY_AT} {other.address[0]}:{other.address[1]}"
            elif problem := misfit(member.name, met.card.protocol, met.card.version, __version__, "the coordinator"):
                self._tell(address, problem)
            else:
                await self._stay(address, met, addresses)
                return True
        except (OSError, grpc.aio.AioRpcError) as error:
            self._tell(address, _reason(error))
        return False

    async def _first_to_answer(self, addresses: tuple[Address, ...]) -> tuple[Address, Met | None]:
        """Ask all addresses at once and take the first that answers, whatever becomes of the others.

        Many a machine has addresses that lead nowhere from here, which is told only where none leads anywhere, or back
        to this machine, which has a bridge of the same number: such an answer holds nobody up.
        """
        asked = {asyncio.create_task(self._ask(address)): address for address in addresses}
        waiting, strangers, problems = set(asked), list[Address](), dict[Address, str]()
        known: tuple[Address, Met | None] = addresses[0], None
        try:
            while waiting:
                # Somebody is there: an address that is silent may be so for long.
                patience = STRANGER_SECONDS if strangers else None
                done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    match task.result():
                        case Met() as met if met.member.node_id in (self.own_node_id, *self._nodes):
                            known = asked[task], met
                        case Met() as met:
                            return asked[task], met
                        case None:
                            strangers.append(asked[task])
                        case problem:
                            problems[asked[task]] = problem
        finally:
            for task in waiting:
                task.cancel()
        for address in strangers:
            if await self._let_in(address):
                return address, None
        if not known[1]:
            for address, problem in problems.items():
                self._tell(address, problem)
        return known

    async def _ask(self, address: Address) -> Met | str | None:
        """Who is there; None for somebody who has no certificate of ours, else why there is nobody."""
        try:
            async with self._asking:
                return await agent_peers.ask(address, self._identity)
        except ssl.SSLCertVerificationError:
            return None
        except JoinRefused as error:
            return f"{error}: has that node joined this cluster?"
        except OSError as error:
            return _reason(error)

    async def _let_in(self, address: Address) -> bool:
        """Offer a certificate to somebody who has none of ours, and perhaps knows the token."""
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._diallers, enrol.dial_as_authority, address, self._authority)
        except JoinRefused as error:
            self._tell(address, f"{error}: is it the same token, and not a member of another cluster?")
        except OSError as error:
            self._tell(address, _reason(error))
        else:
            return True
        return False

    async def _stay(self, address: Address, met: Met, addresses: tuple[Address, ...]) -> None:
        target, member = f"{met.ip}:{met.card.control_port}", met.member
        credentials = self._identity.channel_credentials()
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", server_name(member.node_id))]
        async with grpc.aio.secure_channel(target, credentials, options) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)
            await stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)  # the first one also shakes hands
            started = time.perf_counter()
            state = await stub.Describe(wire.DescribeRequest(), timeout=CALL_SECONDS)
            round_trip_ms = (time.perf_counter() - started) * 1e3
            node = ConnectedNode(met, (met.ip, address[1]), stub, state, round_trip_ms=round_trip_ms)
            if member.node_id in self._nodes:
                return  # found at another address in this very moment
            self._nodes[member.node_id] = node
            # Not before: a node that is ending may still open its door, and is neither there nor without a problem.
            for each in addresses:
                self._problems.pop(each, None)
            log.info("%s is there, at %s:%d", member.name, *node.address)
            tell(events.NODE_JOINED, node=member.name, address="{}:{}".format(*node.address))
            await self._notify()
            measuring = asyncio.create_task(self._measure(node))
            try:
                await self._listen(node)
            except (OSError, grpc.aio.AioRpcError) as error:
                self._tell(address, _reason(error))
                expelled = isinstance(error, NotTrusted)
                tell(events.NODE_EXPELLED if expelled else events.NODE_LOST, node=member.name, why=_reason(error))
            finally:
                measuring.cancel()
                del self._nodes[member.node_id]
                log.warning("%s is gone", member.name)
                await self._notify()

    async def _measure(self, node: ConnectedNode) -> None:
        try:
            found = await asyncio.to_thread(measure_member, node.address, node.node_id, self._identity)
            node.bandwidth = node.bandwidth or found
        except LinkError as error:
            log.warning("%s: %s", node.name, error)

    async def _listen(self, node: ConnectedNode) -> None:
        """Take heartbeats until they stop, pass on who has been expelled, and renew its certificate in time.

        An agent may fall silent while its rank works: as long as what needs the rank is finished, the node is there.
        """
        told, refused, noted, draining = "", b"", False, node.state.draining
        beats = node.stub.Watch(still_here(self.timing), metadata=self.timing.metadata())
        reading: asyncio.Task[wire.Heartbeat] | None = None
        silent_since = time.monotonic()
        try:
            while True:
                if node.node_id in self._identity.expelled():
                    raise NotTrusted(f"{node.name} was expelled")
                if (signed := self._identity.expelled_list()) != told:
                    await node.stub.Expel(wire.ExpelRequest(signed_list=signed), timeout=CALL_SECONDS)
                    told = signed
                reading = reading or asyncio.create_task(beats.read())
                worked, looks = self._last_worked(node.node_id), Looks(time.monotonic(), LOOK_SECONDS)
                # An expelled node must not keep us waiting for its next word.
                if not (await asyncio.wait([reading], timeout=LOOK_SECONDS))[0]:
                    now, patience = time.monotonic(), self.timing.agent_silence_seconds
                    if looks.look(now, LOOK_SECONDS):
                        silent_since = now
                    if now - max(silent_since, worked) > patience:
                        raise OSError(f"no heartbeat for {now - silent_since:.1f} s")
                    if worked - silent_since > patience and not noted:
                        noted = True
                        log.warning("%s sends no heartbeats, but steps that need it finish: it stays", node.name)
                    continue
                beat, reading, silent_since, noted = reading.result(), None, time.monotonic(), False
                if beat is grpc.aio.EOF:
                    raise OSError("the agent ended")
                node.state, node.heard_at, node.heard = beat.node, time.time(), time.monotonic()
                # Not what its state was before: who had refreshed that has told nobody.
                if beat.node.draining != draining:
                    draining = beat.node.draining
                    tell(events.NODE_DRAINS if beat.node.draining else events.NODE_RETURNS, node=node.name)
                    await self._notify()
                if (request := beat.node.certificate_request) and request != refused:
                    refused = b"" if await self._renew(node, request) else request
        finally:
            if reading:
                reading.cancel()
            beats.cancel()

    def _last_worked(self, node_id: str) -> float:
        return max((worked(node_id) for worked in self.users), default=0.0)

    async def _renew(self, node: ConnectedNode, request: bytes) -> bool:
        try:
            certificate = self._authority.renew(request, node.met.member)
        except (NotTrusted, ValueError) as error:
            log.warning("%s gets no new certificate: %s", node.name, error)
            return False
        try:
            await node.stub.Renew(wire.RenewRequest(certificate=certificate), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.warning("%s did not accept its new certificate: %s", node.name, why_failed(error))
            return False
        log.info("%s has a new certificate", node.name)
        return True

    async def _notify(self) -> None:
        self._last_change = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    def _tell(self, address: Address, problem: str) -> None:
        if self._problems.get(address) != problem:
            self._problems[address] = problem
            log.warning("%s:%d: %s", *address, problem)


ALREADY_AT = "is already connected at"
"""What is told of a second address of a node, which is nobody's problem."""
_OURSELVES = "this machine"
_HERE = ("this machine", 0)


async def still_here(timing: WatchTimes, session: str = "") -> AsyncIterator[wire.WatchRequest]:
    """Our side of a Watch: an agent that hears nothing for a while takes us for lost."""
    while True:
        yield wire.WatchRequest(session=session)
        await asyncio.sleep(timing.heartbeat_seconds)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return why_failed(error, "it refused our call: were we expelled?")
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is `chorus join` running?"
    if isinstance(error, TimeoutError):
        return "no answer: is a firewall in between?"
    return str(error) or type(error).__name__
