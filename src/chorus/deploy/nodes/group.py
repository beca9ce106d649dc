"""The ranks of one model over several nodes, as one group for the supervisor: started, watched and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio

from chorus.cluster.coordinator.parts import OwnParts
from chorus.cluster.coordinator.process import ConnectedNode, Nodes, NodesMissing, still_here
from chorus.cluster.coordinator.sources import WantedFiles, find_sources, nobody_has, who_has, wire_files
from chorus.cluster.transfer.share import SharedFile
from chorus.cluster.transfer.sources import FileSource
from chorus.deploy.nodes.links import NoWay, Routes
from chorus.deploy.supervisor import CannotStartNow, GaveUp, ProcessGroup, Program
from chorus.messages.proto import agent_pb2 as wire
from chorus.models import ModelError
from chorus.platform.process.exits import EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.security.names import member_address, split_member

log = logging.getLogger("chorus.coordinator")

KILL_SECONDS = 8.0
REJOIN_SECONDS = 20.0
"""After a loss: how long to wait for a node to come back before going on without it."""


@dataclass(frozen=True)
class RankOrder:
    """What one node is to run."""

    node: ConnectedNode
    rank: int
    files: tuple[SharedFile, ...]
    share: str = ""
    """The digest of the rank's own share, where its files are not among the model's."""


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


class ClusterGroup(ProcessGroup):
    def __init__(
        self,
        nodes: Nodes,
        deploy: Callable[[list[ConnectedNode]], Awaitable[Deployment]],
        served: Served,
        lifeline: Lifeline,
        grace_seconds: float,
        expected: int | None,
        names: Sequence[str],
        start_timeout: float,
        report: Callable[[str], None] = lambda detail: None,
    ) -> None:
        super().__init__("ranks", [], lifeline, grace_seconds, nodes.timing)
        self._nodes = nodes
        self._deploy = deploy
        self._served = served
        self._expected = expected
        self._names = tuple(names)
        self._timeout = start_timeout
        self._report = report
        self._session = ""
        self._orders: tuple[RankOrder, ...] = ()
        self._routes: Routes = {}
        self._watchers: dict[asyncio.Task[str], RankOrder] = {}
        self._started_once = False
        self._limit: asyncio.Timeout | None = None

    def program(self, name: str) -> Program:
        known = {program.name: program for program in self._programs}
        return known.get(name, Program(name, ()))

    async def start(self) -> None:
        nodes = await self._gather()
        # What a coordinator before this one has left there still holds memory, which the planner counts.
        await asyncio.gather(*(self._kill(node, wire.KillRequest(abandoned=True)) for node in nodes))
        try:
            deployment = await self._deploy(nodes)
        except NoWay as error:
            raise self._failure(str(error)) from None
        self._session, self._orders, self._routes = uuid.uuid4().hex, deployment.orders, deployment.routes
        own = asyncio.create_task(self._fetch(deployment.own_files))
        try:
            async with asyncio.timeout(self._timeout) as self._limit:
                sources = await self._find_sources()
                spawned = asyncio.gather(*map(self._spawn, self._orders, sources))
                addresses, _ = await asyncio.gather(spawned, own)
        except TimeoutError:
            await self.stop()
            raise self._failure(f"the nodes did not start their ranks within {self._timeout:g} s") from None
        except (_CannotSpawn, ModelError) as error:
            lost = await self._nobody_has(deployment)
            await self.stop()
            raise self._failure(f"{error}{lost}") from None
        finally:
            self._limit = None
            own.cancel()
        self._watchers = {asyncio.create_task(self._watch(order)): order for order in self._orders}
        self._programs = [deployment.leader(tuple(addresses))]
        await super().start()
        self._started_once = True

    def _failure(self, reason: str) -> GaveUp | CannotStartNow:
        """Worth another try where it has served: a node may have left or begun to drain a moment before we asked it."""
        return CannotStartNow(reason) if self._started_once else GaveUp(reason)

    async def ended(self) -> tuple[str, int]:
        leader = asyncio.create_task(super().ended())
        try:
            done, _ = await asyncio.wait([leader, *self._watchers], return_when=asyncio.FIRST_COMPLETED)
            if leader in done:
                return leader.result()
            lost, order = next((task, order) for task, order in self._watchers.items() if task in done)
            # Closing the connection of a silent node cancels the calls on it.
            log.warning("%s", f"{order.node.name} is gone" if lost.cancelled() else lost.result())
            # The leader notices by itself and can still tell its clients; it is given a moment.
            await asyncio.wait([leader], timeout=self._grace)
            return f"rank {order.rank} on {order.node.name}", EXIT_RANK_LOST
        finally:
            leader.cancel()
            await asyncio.gather(leader, return_exceptions=True)
            await self.stop()

    async def stop(self) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = {}
        await super().stop()
        orders, self._orders = self._orders, ()
        own = wire.KillRequest(session=self._session)
        await asyncio.gather(*(self._kill(order.node, own) for order in orders))

    async def _gather(self) -> list[ConnectedNode]:
        if not self._started_once:
            self._report("waiting for nodes")
            try:
                found = await self._nodes.gather(self._expected, self._names, self._timeout)
            except NodesMissing as error:
                raise GaveUp(str(error)) from None
            if not found and self._expected != 0:
                raise GaveUp("every node is draining: bring one back with `chorus drain --undo NODE`")
            return found
        try:
            found, why = await self._nodes.gather(self._expected, self._names, REJOIN_SECONDS), ""
        except NodesMissing as error:
            found, why = self._nodes.usable(self._names), f": {error}"
        log.warning("continuing with %s%s", ", ".join(node.name for node in found) or "this machine alone", why)
        return found

    async def _find_sources(self) -> list[tuple[FileSource, ...]]:
        served = self._served
        wanted = [WantedFiles(order.node, order.share or served.share, order.files) for order in self._orders]
        absent = served.parts.absent if served.parts else frozenset()
        found = await find_sources(self._nodes.usable(()), wanted, served.model, self._served_from, absent)
        return [self._by_route(order, sources) for order, sources in zip(self._orders, found, strict=True)]

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
        self._report(detail)

    async def _spawn(self, order: RankOrder, sources: tuple[FileSource, ...]) -> str:
        names = frozenset(file.name for file in order.files)
        try:
            return await self._spawn_from(order, sources)
        except _LacksModel as error:
            parts = self._served.parts
            if parts is None or not names & parts.absent:
                raise
            log.warning("%s; fetching the files for it", error)
            try:
                await parts.fetch(order.files)
            except ModelError as own_error:
                raise _CannotSpawn(f"{error}; and this machine cannot get them for it: {own_error}") from None
        here = FileSource(self._served_from(order.node), names)
        return await self._spawn_from(order, (here,))

    async def _spawn_from(self, order: RankOrder, sources: tuple[FileSource, ...]) -> str:
        node, served = order.node, self._served
        request = wire.SpawnRequest(
            session=self._session,
            rank=order.rank,
            model=served.model,
            share=order.share or served.share,
            files=wire_files(order.files),
            sources=[wire.FileSource(address=source.address, files=sorted(source.files)) for source in sources],
            environment=served.environment,
            threads=served.threads,
            log_level=served.log_level,
            silence_seconds=self._timing.silence_seconds,
        )
        try:
            async for progress in node.stub.Spawn(request, metadata=self._timing.metadata()):
                if progress.HasField("started"):
                    return node.rank_address(progress.started.port)
                share = f"{progress.done_bytes / max(progress.total_bytes, 1):.0%}"
                self.progressed(f"{node.name}: {progress.detail} {share}")
        except _GONE as error:
            lacks = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.NOT_FOUND
            kind = _LacksModel if lacks else _CannotSpawn
            raise kind(f"rank {order.rank} on {node.name}: {_details(error)}") from None
        raise _CannotSpawn(f"rank {order.rank} on {node.name}: the agent did not start it")

    async def _watch(self, order: RankOrder) -> str:
        """Wait until the rank or its node is lost; answers how."""
        who = f"rank {order.rank} on {order.node.name}"
        beats = None
        try:
            beats = order.node.stub.Watch(still_here(self._timing, self._session), metadata=self._timing.metadata())
            async for beat in beats:
                mine = [r for r in beat.node.ranks if r.session == self._session and r.rank == order.rank]
                if not mine:
                    return f"{who} was ended by its agent"
                if not mine[0].running:
                    return f"{who} ended with {mine[0].exit_code}: {mine[0].last_words}"
            return f"{who}: its agent ended"
        except _GONE as error:
            return f"{who}: {_details(error)}"
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


class _CannotSpawn(Exception):
    pass


class _LacksModel(_CannotSpawn):
    """The node has no way to get its files by itself."""


_GONE = (grpc.aio.AioRpcError, grpc.aio.UsageError)
"""How calls to a lost node fail; the second where we closed the connection because the node fell silent."""


def _details(error: Exception) -> str:
    told = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return told or "its agent is gone"
