"""An agent's gRPC face: what a coordinator may ask of a node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from chorus import __version__
from chorus.cluster.agent import model_files
from chorus.cluster.agent.ranks import NoPort, Ranks
from chorus.cluster.logs import follow, tail
from chorus.cluster.profile.links import Door, measure_all, reach_member
from chorus.cluster.profile.machine import ProfileError, node_of, profile
from chorus.cluster.transfer.share import FileServer, SharedFile
from chorus.cluster.transfer.sources import FileSource
from chorus.config.hostfile import split_address
from chorus.errors import CannotListen
from chorus.messages.proto import agent_pb2 as wire
from chorus.messages.proto import agent_pb2_grpc
from chorus.platform import system
from chorus.platform.accelerator import device
from chorus.platform.cpu import cores
from chorus.platform.memory.amounts import available_memory, total_memory
from chorus.platform.memory.ledger import LedgerError, NoRoom
from chorus.platform.network import rdma
from chorus.platform.network.links import Address
from chorus.platform.process.timing import WatchTimes
from chorus.platform.storage.paths import cache_dir
from chorus.security.expelled import BadList
from chorus.security.guard import caller
from chorus.security.identity import Identity, make_request, own_key
from chorus.security.member import NotTrusted

log = logging.getLogger("chorus.agent")
refusals = logging.getLogger("chorus.trust")

FIRST_WORD_SECONDS = 10.0
"""How long a coordinator that begins to watch may take to say which session."""
DISK_SECONDS = 5.0
"""How old what is known of the disk may be."""
DRAIN_SECONDS = 12.0
"""How long coordinators may take to lead their streams elsewhere before a node that drains ends its ranks."""
MAX_PROBED = 32
MAX_MESSAGE = 4 << 20
MAX_LOG_LINES = 100_000
_PROGRESS_SECONDS = 0.2


@dataclass
class NodeFacts:
    """What an agent says about its node, apart from what it can measure."""

    name: str
    door_port: int
    log_file: Path
    rank_port: int | None = None
    backend: str = ""
    draining: bool = False
    addresses: tuple[Address, ...] = ()
    """Where others may reach it, as it is now."""


class AgentService(agent_pb2_grpc.AgentServicer):
    """What a node does for its coordinator. `Models` and `Peers` of the protocol are not answered: nobody asks."""

    def __init__(self, facts: NodeFacts, ranks: Ranks, identity: Identity, files: FileServer) -> None:
        self._facts = facts
        self._ranks = ranks
        self._files = files
        self._identity = identity
        self.watchers = 0
        """How many coordinators listen now."""
        self._request = b""
        """Our request for a new certificate, made once."""
        self._ended = asyncio.Event()
        self._disk = Disk(cache_dir())
        self._began = time.monotonic()

    def close(self) -> None:
        """Lets heartbeats and followed logs end, so that the server can."""
        self._ended.set()

    async def Describe(self, request: wire.DescribeRequest, context: grpc.aio.ServicerContext) -> wire.Node:
        await self._check(context)
        node = self._node()
        if request.cables:
            tell_cables(node, await asyncio.to_thread(rdma.look))
        if request.software:
            await asyncio.to_thread(tell_software, node)
        return node

    async def Profile(self, request: wire.ProfileRequest, context: grpc.aio.ServicerContext) -> wire.ProfileReply:
        await self._check(context)
        try:
            found = await asyncio.to_thread(profile, cores.threads_per_rank(cores.usable_cores(), 1))
        except ProfileError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"node {self._identity.member.name}: {error}")
        node = node_of(found, self._identity.member.name, request.memory_fraction)
        node = replace(node, memory=await self._ranks.room(node.memory))
        return wire.ProfileReply(node=json.dumps(asdict(node)), chip=found.chip)

    async def Spawn(
        self, request: wire.SpawnRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.SpawnProgress]:
        await self._check(context)
        if self._facts.draining:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"node {self._identity.member.name} is draining")
        if not request.session.isalnum():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session's name is letters and digits")
        latest: list[wire.SpawnProgress] = []

        def report(detail: str, done: int, total: int) -> None:
            latest[:] = [wire.SpawnProgress(detail=detail, done_bytes=done, total_bytes=total)]

        sources = [FileSource(source.address, frozenset(source.files)) for source in request.sources]
        work = asyncio.create_task(
            asyncio.to_thread(
                model_files.provide,
                self._identity.member.name,
                request.model,
                request.share,
                _shared_files(request.files),
                sources,
                self._identity,
                report,
            )
        )
        while not (await asyncio.wait([work], timeout=_PROGRESS_SECONDS))[0]:
            if latest:
                yield latest.pop()
        try:
            path = work.result()
            rank = await self._ranks.start(
                request.session,
                request.rank,
                request.model,
                self._arguments(request, path),
                dict(request.environment),
                request.port or self._facts.rank_port,
                replace(WatchTimes.told(context.invocation_metadata()), silence_seconds=request.silence_seconds),
                request.needs,
                request.more,
                request.most,
            )
        except (model_files.NoModel, NoPort, NoRoom, LedgerError, OSError) as error:
            log.error("rank %d of %s: %s", request.rank, request.model, error)
            await context.abort(_REFUSALS.get(type(error), grpc.StatusCode.FAILED_PRECONDITION), str(error))
            raise
        started = wire.Started(port=rank.port, pid=rank.process.pid, model_path=str(path))
        yield wire.SpawnProgress(detail="started", started=started)

    async def Offer(self, request: wire.OfferRequest, context: grpc.aio.ServicerContext) -> wire.OfferReply:
        await self._check(context)
        files = _shared_files(request.files)
        share = await asyncio.to_thread(model_files.held, request.model, request.share, files)
        if share.files:
            self._files.offer(share)
        return wire.OfferReply(files=[file.name for file in share.files])

    async def Kill(self, request: wire.KillRequest, context: grpc.aio.ServicerContext) -> wire.KillReply:
        await self._check(context)
        if request.abandoned:
            return wire.KillReply(ended=await self._ranks.end_abandoned())
        return wire.KillReply(ended=await self._ranks.end(request.session or None))

    async def Watch(
        self, requests: AsyncIterator[wire.WatchRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.Heartbeat]:
        await self._check(context)
        try:
            first = await asyncio.wait_for(anext(requests), FIRST_WORD_SECONDS)
        except (TimeoutError, StopAsyncIteration):
            return
        # By what comes in, and not by what goes out: a connection that breaks ends this task at once, but a generator
        # that has just handed out a message only some time later.
        timing = WatchTimes.told(context.invocation_metadata())
        listening = asyncio.create_task(self._listen(first.session, timing, requests))
        self.watchers += 1
        try:
            while not self._ended.is_set() and not listening.done():
                await self._check(context)
                yield wire.Heartbeat(sent_at=time.time(), node=self._node())
                await _within(self._ended.wait(), timing.heartbeat_seconds)
        finally:
            self.watchers -= 1
            listening.cancel()

    async def _listen(self, session: str, timing: WatchTimes, requests: AsyncIterator[wire.WatchRequest]) -> None:
        with self._ranks.watched(session, timing) as heard, contextlib.suppress(grpc.aio.UsageError):
            async for _ in requests:
                heard()

    async def Logs(self, request: wire.LogsRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[wire.LogChunk]:
        await self._check(context)
        text, position = tail(self._facts.log_file, min(request.lines, MAX_LOG_LINES))
        for start in range(0, len(text), 1 << 20):
            yield wire.LogChunk(data=text[start : start + (1 << 20)])
        if request.follow:
            async for data in follow(self._facts.log_file, position):
                yield wire.LogChunk(data=data)

    async def Drain(self, request: wire.DrainRequest, context: grpc.aio.ServicerContext) -> wire.Node:
        await self._check(context)
        self._facts.draining = request.draining
        log.info("draining: coordinators may take their ranks away" if request.draining else "back at work")
        if request.draining:
            await self._ranks.until_taken(DRAIN_SECONDS)
            await self._ranks.end()
        return self._node()

    async def Expel(self, request: wire.ExpelRequest, context: grpc.aio.ServicerContext) -> wire.ExpelReply:
        await self._check(context)
        try:
            self._identity.update_expelled(request.signed_list)
        except BadList as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except OSError as error:
            log.error("the list of expelled nodes cannot be kept, so that ranks do not see it: %s", error)
        return wire.ExpelReply()

    async def Renew(self, request: wire.RenewRequest, context: grpc.aio.ServicerContext) -> wire.RenewReply:
        await self._check(context)
        try:
            self._identity.renew(request.certificate)
        except (OSError, ValueError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return wire.RenewReply()

    async def Probe(self, request: wire.ProbeRequest, context: grpc.aio.ServicerContext) -> wire.ProbeReply:
        await self._check(context)
        try:
            doors = [_door(address) for address in request.addresses[:MAX_PROBED]]
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        look = measure_all if request.measure else reach_member
        found = await asyncio.to_thread(look, doors, request.node_id, self._identity)
        return wire.ProbeReply(
            addresses=[
                wire.ProbedAddress(
                    problem=probe.problem,
                    own_ip=probe.own_ip,
                    round_trip_seconds=probe.round_trip,
                    bytes_per_second=probe.bandwidth or 0.0,
                )
                for probe in found
            ]
        )

    async def _check(self, context: grpc.aio.ServicerContext) -> None:
        try:
            caller(self._identity, context, needs_coordinator=True)
        except NotTrusted as refusal:
            refusals.warning("refused a call from %s: %s", context.peer(), refusal)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "")

    def _arguments(self, request: wire.SpawnRequest, path: Path) -> list[str]:
        chosen = ["--identity", str(self._identity.folder), "--model-path", str(path)]
        chosen += ["--threads", str(request.threads or cores.threads_per_rank(cores.usable_cores(), 1))]
        return [*chosen, "--log-level", request.log_level or "info"]

    def _node(self) -> wire.Node:
        return wire.Node(
            version=__version__,
            host=socket.gethostname(),
            device=device.backend(),
            memory_total=total_memory(),
            memory_available=available_memory(),
            cores=cores.usable_cores(),
            disk_free=self._disk.free(),
            draining=self._facts.draining,
            door_port=self._facts.door_port,
            backend=self._facts.backend,
            ranks=self._ranks.states(),
            memory_booked=self._ranks.booked,
            memory_unbooked=self._ranks.unbooked,
            python=f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
            models_folder=str(self._disk.folder),
            log_file=str(self._facts.log_file.absolute()),
            addresses=[wire.NodeAddress(**vars(address)) for address in self._facts.addresses],
            certificate_request=self._renewal() if self._identity.is_due(self._facts.name) else b"",
            up_seconds=time.monotonic() - self._began,
            clock=time.time(),
        )

    def _renewal(self) -> bytes:
        if not self._request:
            self._request = make_request(own_key(self._identity.folder), self._facts.name)
        return self._request


_REFUSALS = {
    model_files.NoModel: grpc.StatusCode.NOT_FOUND,
    NoRoom: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What a coordinator can do something about when a rank is not started."""


def tell_cables(node: wire.Node, seen: rdma.Rdma) -> None:
    node.rdma_ports.extend(wire.RdmaPort(**asdict(port)) for port in rdma.ports(seen))
    node.meeting_addresses.extend(rdma.meeting_addresses(seen))


def tell_software(node: wire.Node) -> None:
    """As its next rank would find it: an update counts from then on, and this agent may be older."""
    node.mlx, node.mlx_lm = device.installed("mlx") or "", device.installed("mlx-lm") or ""
    node.system = system.description()


class Disk:
    """How much room there is for models, as last seen: a disk may take its time to answer, and heartbeats may not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._free = 0
        self._looked_at = -DISK_SECONDS
        self._looking: asyncio.Task[None] | None = None

    def free(self) -> int:
        if not self._looking and time.monotonic() - self._looked_at >= DISK_SECONDS:
            self._looking = asyncio.create_task(self._look())
        return self._free

    async def _look(self) -> None:
        try:
            self._free = await asyncio.to_thread(_free_space, self.folder)
        except OSError as error:
            log.warning("cannot read how much space %s has: %s", self.folder, error)
        finally:
            self._looked_at, self._looking = time.monotonic(), None


def _free_space(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def _door(address: str) -> Door:
    host, port = split_address(address)
    if port is None:
        raise ValueError(f"{address} names no port")
    return host, port


def _shared_files(files: Iterable[wire.ModelFile]) -> list[SharedFile]:
    return [SharedFile(file.name, file.size, file.fingerprint) for file in files]


async def serve_control(service: AgentService, identity: Identity, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    try:
        bound = server.add_secure_port(f"{host}:{port}", identity.server_credentials())
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: is another process using it? choose --listen") from error
    await server.start()
    return server, bound


async def _within(wait: object, seconds: float) -> None:
    try:
        await asyncio.wait_for(wait, seconds)  # type: ignore[arg-type]
    except TimeoutError:
        return
