"""The ranks of one model over several nodes, as one group for the supervisor: planned, started, kept and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio

from chorus.cluster.coordinator.parts import OwnParts
from chorus.cluster.coordinator.process import LOOK_SECONDS, ConnectedNode, Nodes, NodesMissing, still_here
from chorus.cluster.coordinator.sources import WantedFiles, find_sources, nobody_has, who_has, wire_files
from chorus.cluster.transfer.share import SharedFile
from chorus.cluster.transfer.sources import FileSource
from chorus.deploy.nodes.links import NoWay, Routes
from chorus.deploy.nodes.room import DoesNotHold, Fit, Offer
from chorus.deploy.room import HERE, Bytes, Need
from chorus.deploy.supervisor import CannotStartNow, GaveUp, ProcessGroup, Program
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.models import ModelError, Progress
from chorus.platform.memory.amounts import booked_environment
from chorus.platform.memory.ledger import Ledger, LedgerError, NoRoom
from chorus.platform.process import signals
from chorus.platform.process.beats import Beat
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.losses import Cause, Loss, loss_of_exit, loss_told
from chorus.platform.process.restarts import Life, Restarts, describe_exit
from chorus.platform.process.threads import to_the_end
from chorus.platform.progress import Steady
from chorus.security.names import member_address, split_member
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger("chorus.coordinator")

KILL_SECONDS = 8.0
REJOIN_SECONDS = 20.0
"""How long to wait for a node where those that are left cannot hold the model, before that counts as a failed start."""
REPLAN_SECONDS = 600.0
"""How often a group is planned anew by itself, at most."""


@dataclass(frozen=True)
class RankOrder:
    """What one node is to run."""

    node: ConnectedNode
    rank: int
    files: tuple[SharedFile, ...]
    share: str = ""
    """The digest of the rank's own share, where its files are not among the model's."""
    needs: int = 0
    """What its part takes in all, as planned; 0: nobody knows."""
    more: bool = True
    """Its cache can use more than that."""
    most: int = 0
    """How much would be enough; 0: nobody knows."""


@dataclass(frozen=True)
class Share:
    """What one rank takes of its machine's memory, as planned."""

    needs: int = 0
    most: int = 0


@dataclass(frozen=True)
class Wanted:
    """Which nodes a group is to use, besides this machine."""

    count: int | None = None
    """None: those that are named, or all that are found."""
    names: tuple[str, ...] = ()
    """In rank order, where that matters."""
    only: bool = False
    """No other node may take the place of a named one."""
    met: bool = False
    """All nodes were waited for before: who is there now is used."""


@dataclass(frozen=True)
class Deployment:
    """A model over nodes: made anew for the nodes that are there."""

    orders: tuple[RankOrder, ...]
    leader: Callable[[tuple[str, ...]], Program]
    """Makes the process of rank 0 from the followers' addresses in rank order."""
    own_files: tuple[SharedFile, ...] = ()
    """The files that rank 0 needs."""
    routes: Routes = field(default_factory=dict)
    """At which address ranks reach each other, where that was looked into."""
    apart: bool = False
    """Ranks form no group inside MLX: each can be started again alone."""
    less: str = ""
    """What there is less of than was asked for."""
    here: Share = Share()
    """What rank 0 takes of this machine."""


@dataclass(frozen=True)
class Served:
    """What is the same for every rank of a group over nodes."""

    model: str
    share: str
    source_port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0
    log_level: str = "info"
    parts: OwnParts | None = None
    """What this machine has of the model, where it may lack some of it."""
    name: str = ""
    """What people call the model."""
    here: str = "this machine"
    """What this machine is called."""
    ledger: Ledger | None = None
    """Where rank 0 is booked; None: it is not, since there is no other model beside it."""
    promised: int = 0
    """What the whole group was counted for before it knew where its ranks are."""


class ClusterGroup(ProcessGroup):
    """The leader is a process of this one, every other rank that of an agent.

    Where ranks need no group inside MLX, each is kept alone: a rank that ends while its agent answers is started again
    at its old address, a leader that ends finds the others with their weights. What cannot be kept so ends the group,
    which is then planned anew for the nodes that are there.
    """

    def __init__(
        self,
        nodes: Nodes,
        deploy: Callable[[list[ConnectedNode], Fit], Awaitable[Deployment]],
        served: Served,
        lifeline: Lifeline,
        grace_seconds: float,
        wanted: Wanted,
        start_timeout: float,
        report: Callable[[str], None] = lambda detail: None,
        offer: Callable[[list[ConnectedNode], list[ConnectedNode], str], Awaitable[Offer | None]] | None = None,
        replan_by_itself: bool = False,
    ) -> None:
        super().__init__("ranks", [], lifeline, grace_seconds, nodes.timing)
        self._nodes = nodes
        self._deploy = deploy
        self._served = served
        self._wanted = wanted
        self._timeout = start_timeout
        self._report = report
        self._offer = offer
        self._replan_by_itself = replan_by_itself
        self._session = ""
        self._deployment: Deployment | None = None
        self._orders: tuple[RankOrder, ...] = ()
        self._routes: Routes = {}
        self._ports: dict[int, int] = {}
        """Of every rank on a node: who knows it by its address finds the next one there."""
        self._keepers: dict[asyncio.Task[str], RankOrder] = {}
        self._following: asyncio.Task[str] | None = None
        self._asked: asyncio.Future[str] | None = None
        """Somebody wants the group planned anew, and waits for what comes of it."""
        self._was_asked = asyncio.Event()
        self._started_once = False
        self._before: tuple[ConnectedNode, ...] = ()
        """The nodes that had ranks last."""
        self._step = (0, 0.0)
        """The last step that the leader was seen to have finished, and when by our clock."""
        self._replanned_at = -math.inf
        self.notice = ""
        """What is not as it was asked for since a node was lost."""
        self._limit: asyncio.Timeout | None = None
        self.booked_here = 0
        nodes.users.add(self._last_worked)

    def close(self) -> None:
        _answer(self._asked, self._unloaded())
        self._nodes.users.discard(self._last_worked)
        super().close()

    @property
    def model(self) -> str:
        """What people call it."""
        return self._served.name

    @property
    def promised(self) -> int:
        return self._served.promised

    @property
    def session(self) -> str:
        """Its name among the groups that agents know."""
        return self._session

    def program(self, name: str) -> Program:
        known = {program.name: program for program in self._programs}
        return known.get(name, Program(name, ()))

    @property
    def goes_on(self) -> bool:
        return bool(self._keepers)

    async def start(self) -> None:
        """All of it, or the leader alone where the other ranks were kept."""
        if any(task.done() for task in self._keepers):
            await self.stop()
        forming = asyncio.create_task(self._start_leader() if self._keepers else self._form())
        try:
            await forming
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # Closing the connection of a silent node cancels the calls on it.
            await self.stop()
            raise self._failure("a node was lost while its ranks were started") from None
        except NoWay as error:
            raise self._failure(str(error)) from None
        self._started_once = True

    async def replan(self) -> str:
        """End the ranks in order and start them as is best for the nodes that are there now; answers who serves."""
        if self.ends:
            raise CannotStartNow("the server ends: nothing is planned anew")
        if self._following is None:
            raise CannotStartNow("the ranks are just being started: try again when the model is served")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._was_asked.set()
        told = await asyncio.shield(self._asked)
        try:
            async with asyncio.timeout(self._timeout):
                while not self.serves:
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise CannotStartNow(f"{told} does not serve after {self._timeout:g} s: the log says why") from None
        return told

    async def ended(self) -> tuple[str, int]:
        """Keep the group until it must be started again; answers who ended, and how."""
        while True:
            assert self._following is not None
            leader = asyncio.create_task(self._leader_ended())
            asked = asyncio.create_task(self._was_asked.wait())
            try:
                on_purpose = [] if self.ends else [asked, self._following]
                done, _ = await asyncio.wait([leader, *self._keepers, *on_purpose], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (leader, asked):
                    task.cancel()
            if leader in done:
                return await self._lost_leader(*leader.result())
            if lost := next((task for task in self._keepers if task in done), None):
                # Closing the connection of a silent node cancels the calls on it.
                name = self._keepers[lost].node.name
                return await self._lost_rank(
                    self._keepers[lost], f"{name} is gone" if lost.cancelled() else lost.result()
                )
            if not self.ends:
                await self._start_anew(self._following.result() if self._following in done else "asked to plan anew")

    async def _lost_leader(self, name: str, code: int) -> tuple[str, int]:
        """The others keep their weights for the next leader, unless it is they who may be to blame."""
        if code != EXIT_CANNOT_START:
            self.note_loss(self._loss(name, code))
        if self._apart and self.life(time.monotonic()).served > 0 and code not in (EXIT_RANK_LOST, EXIT_CANNOT_START):
            await super().stop()
        else:
            await self.stop()
        return name, code

    async def _lost_rank(self, order: RankOrder, how: str) -> tuple[str, int]:
        log.warning("%s", how)
        self.note_loss(Loss(Cause.OUTSIDE, how))
        if self._apart:
            # It waits for the lost rank to come back, and hears nothing else meanwhile.
            self._kill_leader()
        else:
            # The leader notices by itself and can still tell its clients; it is given a moment.
            await asyncio.wait([asyncio.create_task(self._leader_ended())], timeout=self._grace)
        await self.stop()
        return f"rank {order.rank} on {order.node.name}", EXIT_RANK_LOST

    async def _start_anew(self, why: str) -> None:
        """A change on purpose, which is no loss: nobody is blamed and nothing counted."""
        log.info("%s: ending the ranks in order, then planning anew", why)
        tell(events.REPLANNED, model=self._served.name, why=why)
        asked, self._asked = self._asked, None
        self._was_asked.clear()
        self.note_loss(Loss(Cause.OUTSIDE, why))
        try:
            await self.stop()
            self._before, self._replanned_at = (), time.monotonic()
            await self.start()
        except (CannotStartNow, GaveUp) as error:
            _answer(asked, error)
            raise
        except asyncio.CancelledError:
            _answer(asked, self._unloaded())
            raise
        _answer(asked, self._members())

    def _unloaded(self) -> CannotStartNow:
        return CannotStartNow(f"{self._served.name} was unloaded meanwhile")

    async def stop(self) -> None:
        tasks = [*self._keepers, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keepers, self._following = {}, None
        await super().stop()
        orders, self._orders = self._orders, ()
        own = wire.KillRequest(session=self._session)
        await asyncio.gather(*(self._kill(order.node, own) for order in orders))
        if self._served.ledger:
            await self._release_here(self._served.ledger)
            await self._nodes.refresh()  # others may wait for what was just given back

    @property
    def _apart(self) -> bool:
        return self._deployment is not None and self._deployment.apart

    def _failure(self, reason: str) -> GaveUp | CannotStartNow:
        """Worth another try where it has served: a node may have left or begun to drain a moment before we asked it."""
        return CannotStartNow(reason) if self._started_once else GaveUp(reason)

    async def _form(self) -> None:
        deployment = await (self._go_on() if self._started_once else self._begin())
        self._deployment = deployment
        self._session, self._orders, self._routes = uuid.uuid4().hex, deployment.orders, deployment.routes
        self._ports = {}
        await self._book_here(deployment.here)
        own = asyncio.create_task(self._fetch(deployment.own_files))
        try:
            async with asyncio.timeout(self._timeout) as self._limit:
                sources = await self._find_sources(self._orders)
                await self._spawn_all(sources, own)
        except TimeoutError:
            await self.stop()
            told = f"the nodes did not start their ranks within {self._timeout:g} s (engine.start_timeout_seconds)"
            raise self._failure(told) from None
        except _HasNoRoom as error:
            await self.stop()
            told, missing = str(error), (Need(1, frozenset({error.node})),)
            raise (self._failure(told) if self._started_once else DoesNotHold(told, missing)) from None
        except (_CannotSpawn, ModelError) as error:
            lost = await self._nobody_has(deployment)
            await self.stop()
            raise self._failure(f"{error}{lost}") from None
        finally:
            self._limit = None
            own.cancel()
        self._before = tuple(order.node for order in self._orders)
        self._keepers = {asyncio.create_task(self._keep_rank(order)): order for order in self._orders}
        await self._start_leader()

    async def _spawn_all(self, sources: Sequence[tuple[FileSource, ...]], own: asyncio.Task[None]) -> None:
        """Start the ranks on all nodes while this machine fetches its own files."""
        spawning = [asyncio.create_task(self._spawn(*each)) for each in zip(self._orders, sources, strict=True)]
        try:
            await asyncio.gather(*spawning, own)
        finally:
            # Where one could not be started, a node that goes on with another would start it after all were ended.
            for each in spawning:
                each.cancel()
            await asyncio.gather(*spawning, return_exceptions=True)

    async def _start_leader(self) -> None:
        """A process for rank 0, which loads with the ranks that are there."""
        assert self._deployment is not None
        addresses = tuple(order.node.rank_address(self._ports[order.rank]) for order in self._orders)
        leader = self._deployment.leader(addresses)
        if self.booked_here:
            leader = replace(leader, environment={**leader.environment, **booked_environment(self.booked_here)})
        self._programs = [leader]
        await super().start()
        self._following = self._following or asyncio.create_task(self._follow())

    async def _book_here(self, share: Share) -> None:
        """Before anything is fetched or started for it."""
        served, ledger = self._served, self._served.ledger
        if ledger is None:
            return

        def book() -> None:
            self.booked_here = ledger.grant(
                self._owner, share.needs, served.name, more=not share.most, most=share.most
            ).amount

        try:
            await to_the_end(book)
        except NoRoom as error:
            told = f"rank 0 on {served.here}: {error}"
            missing = (Need(error.asked - error.free, frozenset({HERE})),)
            raise (self._failure(told) if self._started_once else DoesNotHold(told, missing)) from None
        except LedgerError as error:
            raise self._failure(str(error)) from None

    async def _release_here(self, ledger: Ledger) -> None:
        if self.booked_here:
            try:
                await asyncio.to_thread(ledger.release, self._owner)
            except LedgerError as error:
                log.warning("%s", error)
        self.booked_here = 0

    @property
    def _owner(self) -> str:
        return f"rank 0 of {self._served.name}"

    @property
    def members(self) -> tuple[str, ...]:
        return (self._served.here, *(order.node.name for order in self._orders))

    @property
    def booked(self) -> Bytes:
        there = {name: rank.booked_bytes for name, rank in self._states()}
        return {HERE: self.booked_here, **there} if self.booked_here or there else {}

    @property
    def beats(self) -> tuple[Beat, ...]:
        there = (Beat(loaded_bytes=rank.loaded_bytes, total_bytes=rank.total_bytes) for _, rank in self._states())
        return (*super().beats, *there)

    def _states(self) -> Iterator[tuple[str, wire.RankState]]:
        """Of its ranks on nodes, by the names of those, as they last told."""
        for order in self._orders:
            if node := self._nodes.find(order.node.node_id):
                ours = (rank for rank in node.state.ranks if rank.session == self._session and rank.running)
                yield from ((node.name, rank) for rank in ours)

    def _kill_leader(self) -> None:
        for member in self._running.values():
            signals.send(member.process, signal.SIGKILL)

    async def _leader_ended(self) -> tuple[str, int]:
        ((name, member),) = self._running.items()
        return name, await member.process.wait()

    @property
    def held_bytes(self) -> int:
        """The memory of rank 0, which is here."""
        return max((each.memory for member in self._running.values() for each in member.watched), default=0)

    def _last_worked(self, node_id: str) -> float:
        """When the leader last finished a step, for nodes that have a part in every step."""
        leader = next(iter(self._running), "")
        if not leader or all(order.node.node_id != node_id for order in self._orders):
            return 0.0
        step = self._monitors[leader].read().step
        if step != self._step[0]:
            self._step = step, time.monotonic()
        return self._step[1]

    async def _begin(self) -> Deployment:
        wanted = self._wanted
        self.tell("waiting for nodes")
        try:
            if wanted.met:
                await self._nodes.refresh()
            else:
                await self._nodes.gather(wanted.count, wanted.names, self._timeout)
        except NodesMissing as error:
            raise GaveUp(str(error)) from None
        found = self._wanted_nodes()
        if not found and wanted.count != 0:
            raise GaveUp(self._nobody())
        # What a coordinator before this one has left there still holds memory, which the planner counts.
        await self._end_abandoned(found)
        return await self._deploy(found, Fit.WHOLE if self._served.ledger else Fit.AS_ASKED)

    def _nobody(self) -> str:
        there = [node.name for node in self._nodes.present]
        names = [name for name in self._wanted.names if name not in there]
        if names and len(names) == len(self._wanted.names):
            return f"none of its nodes is there: {', '.join(names)}"
        if not there:
            return "no node is there: is `chorus join` running on one?"
        return "every node is draining: bring one back with `chorus drain --undo NODE`"

    async def _go_on(self) -> Deployment:
        """Around whoever is missing, at once where the others can hold the model; else wait for a node to come."""
        deadline, why = time.monotonic() + REJOIN_SECONDS, ""
        while True:
            await self._nodes.refresh()
            wanted = self._wanted_nodes()
            for nodes, fit in choices(wanted, self._before, self._spares(wanted)):
                await self._end_abandoned(nodes)
                try:
                    deployment = await self._deploy(nodes, fit)
                except DoesNotHold as error:
                    why = str(error)
                except GaveUp as error:
                    raise CannotStartNow(str(error)) from None
                else:
                    self._say_who_goes_on(nodes, deployment)
                    return deployment
            if time.monotonic() > deadline:
                raise CannotStartNow(f"{names_of(wanted)} cannot go on without the others: {why}")
            self.tell(f"waiting for a node: {why}")
            await asyncio.sleep(LOOK_SECONDS)

    def _wanted_nodes(self) -> list[ConnectedNode]:
        """Those that a start from scratch would use now."""
        return self._nodes.usable(self._wanted.names)[: self._wanted.count]

    def _spares(self, wanted: Sequence[ConnectedNode]) -> list[ConnectedNode]:
        if self._wanted.only:
            return []
        taken = {node.node_id for node in wanted}
        return [node for node in self._nodes.usable(()) if node.node_id not in taken]

    def _say_who_goes_on(self, nodes: Sequence[ConnectedNode], deployment: Deployment) -> None:
        missing = [node.name for node in self._before if node.node_id not in {other.node_id for other in nodes}]
        without = f" without {', '.join(missing)}" if missing else ""
        less = f"; {deployment.less}" if deployment.less else ""
        log.warning("continuing with %s%s%s", names_of(nodes), without, less)
        tell(events.GOES_ON, model=self._served.name, nodes=names_of(nodes), without=without, less=less)
        self.notice = f"going on{without}{less}" if missing or less else ""

    def _members(self) -> str:
        others = [order.node.name for order in self._orders]
        return f"this machine with {', '.join(others)}" if others else "this machine alone"

    async def _end_abandoned(self, nodes: Sequence[ConnectedNode]) -> None:
        await asyncio.gather(*(self._kill(node, wire.KillRequest(abandoned=True)) for node in nodes))

    async def _follow(self) -> str:
        """Wait until the group should be planned anew; answers why."""
        seen: set[str] = set()
        weighing: asyncio.Task[str] | None = None
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                states = {node.node_id: node.state for node in self._nodes.present}
                for order in self._orders:
                    if (state := states.get(order.node.node_id)) and state.draining:
                        return f"{order.node.name} drains"
                if weighing and weighing.done():
                    # Closing the connection of a silent node cancels the calls on it.
                    why, weighing = "" if weighing.cancelled() else weighing.result(), None
                    if why:
                        return why
                wanted, used = self._wanted_nodes(), {order.node.node_id for order in self._orders}
                new = [node for node in wanted if node.node_id not in used | seen]
                seen &= {node.node_id for node in wanted}
                if new and self.serves and not weighing:
                    seen |= {node.node_id for node in new}
                    weighing = asyncio.create_task(self._weigh(wanted, new))
        finally:
            if weighing:
                weighing.cancel()

    async def _weigh(self, wanted: list[ConnectedNode], new: Sequence[ConnectedNode]) -> str:
        """Say what new nodes would bring; answers why to use them now, or nothing. Takes the time to measure them."""
        # What a node that was lost still runs is of a group that is no more.
        await self._end_abandoned(new)
        used = [order.node for order in self._orders]
        found = await self._offer(used, wanted, self._session) if self._offer else None
        rested = time.monotonic() - self._replanned_at > REPLAN_SECONDS
        if found and found.pays and self._replan_by_itself and rested:
            return f"{names_of(new)} came, {found}"
        speeds = f": {found}" if found else ""
        log.info("%s came and is not used%s; `chorus replan` plans with it", names_of(new), speeds)
        return ""

    async def _find_sources(self, orders: Sequence[RankOrder]) -> list[tuple[FileSource, ...]]:
        served = self._served
        wanted = [WantedFiles(order.node, order.share or served.share, order.files) for order in orders]
        absent = served.parts.absent if served.parts else frozenset()
        found = await find_sources(self._nodes.usable(()), wanted, served.model, self._served_from, absent)
        return [self._by_route(order, sources) for order, sources in zip(orders, found, strict=True)]

    def _by_route(self, order: RankOrder, sources: tuple[FileSource, ...]) -> tuple[FileSource, ...]:
        """Doors as this rank's node reaches them, where that is known; the others are where we reach them."""
        ways = {other.node.node_id: self._routes.get((order.rank, other.rank)) for other in self._orders}

        def routed(source: FileSource) -> FileSource:
            node_id, place = split_member(source.address)
            way = ways.get(node_id)
            port = int(place.rpartition(":")[2])
            return replace(source, address=member_address(node_id, way.ip, port)) if way else source

        return tuple(map(routed, sources))

    def _served_from(self, node: ConnectedNode) -> str:
        """This machine's door, as that node reaches it."""
        rank = next((order.rank for order in self._orders if order.node is node), None)
        route = self._routes.get((rank, 0)) if rank else None
        return member_address(self._nodes.own_node_id, route.ip if route else node.own_ip, self._served.source_port)

    async def _fetch(self, files: Sequence[SharedFile]) -> None:
        if self._served.parts:
            await self._served.parts.fetch(files, self._ask_nodes)

    async def _ask_nodes(self, files: Sequence[SharedFile]) -> tuple[FileSource, ...]:
        return await who_has(self._nodes.usable(()), self._served.model, self._served.share, files)

    async def _nobody_has(self, deployment: Deployment) -> str:
        """What to add to an error: the files that are on no machine of this cluster."""
        parts = self._served.parts
        if parts is None or not parts.absent:
            return ""
        needs = {f"rank {o.rank} on {o.node.name}": o.files for o in deployment.orders if not o.share}
        needs = {"rank 0 here": deployment.own_files, **needs}
        files = {file.name: file for many in needs.values() for file in many}
        told = nobody_has(needs, parts.absent, await self._ask_nodes(tuple(files.values())))
        remedy = "start with the hub in reach, or pull the model on one of them"
        return f"; no machine here has {told}: {remedy}" if told else ""

    def progressed(self, detail: str) -> None:
        """Bytes that move are a reason to wait on: a large model takes longer to fetch than a rank to start."""
        if self._limit:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout)
        self.tell(detail)

    def tell(self, detail: str) -> None:
        """What is done before its leader can say anything itself."""
        self.detail = detail
        self._report(detail)

    async def _spawn(self, order: RankOrder, sources: tuple[FileSource, ...], loss: Loss | None = None) -> None:
        names = frozenset(file.name for file in order.files)
        try:
            await self._spawn_from(order, sources, loss)
            return
        except _LacksModel as error:
            parts = self._served.parts
            if parts is None or not names & parts.absent:
                raise
            log.warning("%s; fetching the files for it", error)
            try:
                await parts.fetch(order.files)
            except ModelError as own_error:
                told = f"{error}; and this machine cannot get them for it: {own_error}"
                raise _CannotSpawn(told, order.node.name) from None
        here = FileSource(self._served_from(order.node), names)
        await self._spawn_from(order, (here,), loss)

    async def _spawn_from(self, order: RankOrder, sources: tuple[FileSource, ...], loss: Loss | None) -> None:
        """Where it has been before, it listens at the same port again."""
        node, served = order.node, self._served
        request = wire.SpawnRequest(
            session=self._session,
            rank=order.rank,
            model=served.model,
            share=order.share or served.share,
            files=wire_files(order.files),
            sources=[wire.FileSource(address=source.address, files=sorted(source.files)) for source in sources],
            environment={**served.environment, **(loss.environment() if loss else {})},
            threads=served.threads,
            log_level=served.log_level,
            silence_seconds=self._timing.silence_seconds,
            port=self._ports.get(order.rank, 0),
            needs=order.needs,
            more=order.more,
            most=order.most,
        )
        steady = Steady()
        try:
            async for progress in node.stub.Spawn(request, metadata=self._timing.metadata()):
                if progress.HasField("started"):
                    self._ports[order.rank] = progress.started.port
                    return
                seen = Progress(f"{node.name}: {progress.detail}", progress.done_bytes, progress.total_bytes)
                self.progressed(steady.text(seen))
        except _GONE as error:
            code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
            kind = _REFUSALS.get(code, _CannotSpawn)
            raise kind(f"rank {order.rank} on {node.name}: {_details(error)}", node.name) from None
        raise _CannotSpawn(f"rank {order.rank} on {node.name}: the agent did not start it", node.name)

    async def _keep_rank(self, order: RankOrder) -> str:
        """Start a rank again wherever that can be done alone; answers how it was lost for the group."""
        restarts, started = Restarts(ran=True), time.monotonic()
        while True:
            end = await self._watch(order)
            if self.ends or end.code is None or not self._apart or self.life(time.monotonic()).served <= 0:
                return end.told
            now = time.monotonic()
            pause = restarts.pause(end.code, now, Life(served=now - started, delivered=self.life(now).delivered))
            if pause is None:
                return end.told
            log.warning("%s: starting it again%s", end.told, f" in {pause:g} s" if pause else "")
            cause = end.loss.cause if end.loss else ""
            model, node, rank = self._served.name, order.node.name, order.rank
            tell(events.RANK_LOST, model=model, node=node, rank=rank, cause=cause, why=end.told, what="it")
            await asyncio.sleep(pause)
            if self.ends:
                return end.told
            started = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    await self._spawn(order, (await self._find_sources([order]))[0], end.loss)
            except (_CannotSpawn, TimeoutError) as error:
                return f"{end.told}, and cannot be started again: {error or 'its node takes too long'}"

    async def _watch(self, order: RankOrder) -> _RankEnd:
        """Wait until the rank or its node is lost; answers how."""
        who = f"rank {order.rank} on {order.node.name}"
        beats = None
        try:
            beats = order.node.stub.Watch(still_here(self._timing, self._session), metadata=self._timing.metadata())
            async for beat in beats:
                mine = [r for r in beat.node.ranks if r.session == self._session and r.rank == order.rank]
                if not mine:
                    return _RankEnd(f"{who} was ended by its agent")
                if not mine[0].running:
                    return _end_of(who, mine[0])
            return _RankEnd(f"{who}: its agent ended")
        except _GONE as error:
            return _RankEnd(f"{who}: {_details(error)}")
        finally:
            if beats:
                beats.cancel()

    async def _kill(self, node: ConnectedNode, request: wire.KillRequest) -> None:
        """End a node's ranks if we are connected with it; one that is gone ends forgotten ranks by itself."""
        there = self._nodes.find(node.node_id)
        if there is None:
            return
        with contextlib.suppress(*_GONE):
            await there.stub.Kill(request, timeout=KILL_SECONDS)


@dataclass(frozen=True)
class _RankEnd:
    told: str
    code: int | None = None
    """How its process ended; None: nobody is there who could start it again."""
    loss: Loss | None = None


def _end_of(who: str, state: wire.RankState) -> _RankEnd:
    """As its agent tells it, which knows best what the end means."""
    words = f": {state.last_words}" if state.last_words else ""
    told = f"{who} ended with {describe_exit(state.exit_code)}{words}"
    known = loss_told(state.loss_cause, state.loss_told)
    return _RankEnd(told, state.exit_code, known or loss_of_exit(who, state.exit_code))


def choices(
    wanted: Sequence[ConnectedNode], before: Sequence[ConnectedNode], spares: Sequence[ConnectedNode]
) -> Iterator[tuple[list[ConnectedNode], Fit]]:
    """With whom to go on, the best first: with those that are left, with others in place of the lost ones, with less
    room. Those that had no ranks before a loss are kept out of it while the rest can do without them.
    """
    used = {node.node_id for node in before or wanted}
    left = [node for node in wanted if node.node_id in used]
    others = [node for node in (*wanted, *spares) if node.node_id not in used]
    filled = [*left, *others[: max(1, len(before) - len(left))]]
    for fit in (Fit.WHOLE, Fit.LESS):
        yield left, fit
        if len(filled) > len(left):
            yield filled, fit


def names_of(nodes: Sequence[ConnectedNode]) -> str:
    """Those who work besides this machine."""
    return ", ".join(node.name for node in nodes) or "this machine alone"


def _answer(asked: asyncio.Future[str] | None, answer: str | Exception) -> None:
    if asked is None or asked.done():
        return
    if isinstance(answer, Exception):
        asked.set_exception(answer)
    else:
        asked.set_result(answer)


class _CannotSpawn(Exception):
    def __init__(self, told: str, node: str) -> None:
        super().__init__(told)
        self.node = node


class _LacksModel(_CannotSpawn):
    """The node has no way to get its files by itself."""


class _HasNoRoom(_CannotSpawn):
    """Somebody else has booked what was left there when the plan was made."""


_REFUSALS: Mapping[grpc.StatusCode | None, type[_CannotSpawn]] = {
    grpc.StatusCode.NOT_FOUND: _LacksModel,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _HasNoRoom,
}


_GONE = (grpc.aio.AioRpcError, grpc.aio.UsageError)
"""How calls to a lost node fail; the second where we closed the connection because the node fell silent."""


def _details(error: Exception) -> str:
    return why_failed(error, "its agent is gone")
