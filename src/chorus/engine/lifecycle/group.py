"""Forms the group of ranks that holds one model: greet, load together, connect."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import grpc
import mlx.core as mx

from chorus.config.engine import EngineSpec
from chorus.engine.leader import Followers, NoFollowers
from chorus.engine.ranks.followers import CannotForm, Follower, FollowerGroup, load_all
from chorus.engine.ranks.patience import StepPatience, link_seconds
from chorus.engine.room import RankRoom, Room
from chorus.messages.load import LoadRequest, ranks_here
from chorus.messages.proto import rank_pb2
from chorus.models import ModelError
from chorus.models.headers import read_headers
from chorus.models.preshard.folder import is_preshard
from chorus.planning.layout import Layout, check_transport, shape
from chorus.planning.split import SplitError, choose_split, layers_of
from chorus.platform.accelerator import device
from chorus.platform.memory import mac
from chorus.platform.memory.amounts import cache_share, left_for_cache
from chorus.platform.process.losses import Loss, loss_told
from chorus.platform.sizes import size
from chorus.rank.cache.disk import Disk, NoDisk
from chorus.rank.disk_tier import open_disk
from chorus.rank.load import LoadedShard, LoadError, load_shard, own_folder, stored_layers
from chorus.rank.parallel import Part, rejoin, take_part
from chorus.rank.pipeline.stage import check_boundaries
from chorus.rank.runner import Runner
from chorus.rank.tensor import divide
from chorus.rank.upstream.weights import read_config
from chorus.rank.worker import PUT_TIMEOUT_SECONDS
from chorus.security.names import split_member
from chorus.transport import catalog
from chorus.transport.channel import open_server
from chorus.transport.grpc_link import tensor_service
from chorus.transport.links import Inbox
from chorus.transport.ports import HeldPort
from chorus.transport.security import Security, security_of

log = logging.getLogger("chorus.engine")

LEADER_THREADS = 4
LOGIT_BYTES = 4
"""With the states behind a prompt the leader keeps its logits."""
ORDINARY_TOKENS = 2048
"""Prompt and answer of a request that nobody would call long."""


@dataclass(frozen=True)
class CacheRoom:
    """What a rank has left for keys, values and states, and what they cost there."""

    rank: str
    backend: str
    left: int
    cost: int
    """Of a token."""
    state: int
    """Of a sequence's windows and recurrent states."""
    layers: int
    """Those that keep something of every token: one of them is copied when a cache grows."""
    weights: int

    @property
    def tokens(self) -> int:
        return self.left // self.cost


@dataclass(frozen=True)
class Group:
    shard: LoadedShard
    followers: Followers
    batches: bool
    disk: Disk = field(default_factory=NoDisk)
    """The leader's own."""
    part: Part | None = None
    formation: Formation | None = None
    """None: this is the only rank."""

    @property
    def renewable(self) -> bool:
        return self.formation is not None and self.formation.renewable

    def losses_since(self, before: Group | None) -> list[Loss]:
        """How those processes ended that were replaced since, or ever, as far as somebody has told the new ones."""
        known = {follower.hello.pid for follower in before.followers.followers} if before else set()
        new = (follower.hello for follower in self.followers.followers if follower.hello.pid not in known)
        return [loss for hello in new if (loss := loss_told(hello.loss_cause, hello.loss_told))]

    def room(self, own: Runner, fraction: float, context: int, most: int | None = None) -> Room:
        """What the caches may take on each rank where they take anything: what is left there, or `most`."""
        rooms = [room for room in self._rooms(own, fraction) if room.cost or room.state]
        if growing := [room for room in rooms if room.cost]:
            check_ordinary(min(growing, key=lambda room: room.tokens), context)
        return Room(
            tuple(
                RankRoom(room.left if most is None else min(room.left, most), room.cost, room.state, room.layers)
                for room in rooms
            )
        )

    def _rooms(self, own: Runner, fraction: float) -> Iterator[CacheRoom]:
        backend, left = device.backend(), left_for_cache(mx, self.shard.budget)
        yield CacheRoom(
            "rank 0",
            backend,
            cache_share(backend, left, fraction),
            own.cache_bytes_per_token,
            own.state_bytes + (LOGIT_BYTES * self.shard.vocabulary if own.state_bytes else 0),
            self._copied(max(1, own.growing_layers)),
            self.shard.weight_bytes,
        )
        for f in self.followers.followers:
            yield CacheRoom(
                f.name,
                f.hello.device,
                cache_share(f.hello.device, f.free_bytes, fraction),
                f.cache_bytes_per_token,
                f.state_bytes,
                self._copied(max(1, f.growing_layers)),
                f.loaded.weight_bytes,
            )

    def _copied(self, layers: int) -> int:
        """Of how many layers one exists twice for a moment: fewer where a layer's keys and values are also unpacked, in
        float32 at most.
        """
        packing = self.shard.stage.packing
        return max(1, layers // (1 + 32 // packing.bits)) if packing else layers

    @property
    def stages(self) -> int:
        return self.followers.stages

    @property
    def lookahead(self) -> bool:
        return self.followers.lookahead


def check_ordinary(room: CacheRoom, context: int) -> None:
    """Refuse a model that is loaded and could not answer: better now, with the figures, than at every request."""
    wanted = min(context, ORDINARY_TOKENS)
    if room.tokens >= wanted:
        return
    remedy = mac.REMEDY if room.backend == "metal" else "free memory there, or choose a smaller model"
    raise LoadError(
        f"{room.rank} has {size(room.left)} left for keys and values beside {size(room.weights)} of weights, enough "
        f"for {room.tokens} tokens; an ordinary request of {wanted} takes {size(wanted * room.cost)}: {remedy}"
    )


def form_group(spec: EngineSpec, report: Callable[[float], None], cleanup: contextlib.ExitStack) -> Group:
    ranks = max(1, len(spec.ranks))
    if ranks == 1:
        shard = load_shard(
            own_folder(spec.model_path, 0, spec.split, spec.weights),
            lambda layers: layers_of(0, choose_split(spec.split, layers, 1)),
            **_load_options(spec),
            policy=spec.policies[0] if spec.policies else None,
            progress=lambda done, total: report(done / max(total, 1)),
        )
        _tell(shard)
        disk = open_disk(shard, 0, (), spec.disk_bytes, str(spec.cache.disk_folder or ""))
        cleanup.callback(disk.close)
        return Group(shard, NoFollowers(), shard.stage.batches, disk)
    return Formation(spec, _layout(spec, ranks), cleanup).form(report)


class Formation:
    """What outlives a group: who its ranks are, what each holds, and where tensors for this one arrive."""

    def __init__(self, spec: EngineSpec, layout: Layout, cleanup: contextlib.ExitStack) -> None:
        self._spec = spec
        self._layout = layout
        self._security = security_of(spec.identity, spec.insecure)
        self._inbox = Inbox()
        self._current: FollowerGroup | None = None
        server, self._address = _open_own(spec.ranks[0], self._security)
        server.add_generic_rpc_handlers((tensor_service(self._inbox, PUT_TIMEOUT_SECONDS),))
        server.start()
        cleanup.callback(lambda: server.stop(grace=0).wait(2.0))
        self._cleanup = cleanup
        cleanup.callback(self._close)

    @cached_property
    def _headers(self) -> bytes:
        """What ranks compare theirs with that find the model themselves; a cluster's members are handed the right
        files. Read once: the streams that wait for a lost rank need not wait for that too.
        """
        if not self._spec.model or self._spec.identity:
            return b""
        try:
            return read_headers(self._spec.model_path).packed()
        except (ModelError, OSError) as error:
            raise CannotForm(str(error)) from error

    @property
    def renewable(self) -> bool:
        """Whether a lost rank can be replaced while the others go on: a process forms one collective in its life."""
        return not catalog.get(self._spec.transport).collective

    def form(self, report: Callable[[float], None]) -> Group:
        """Every rank loads its part."""
        group = self._form(report, None)
        _tell(group.shard)
        self._cleanup.callback(group.disk.close)
        return group

    def renew(self, before: Group, report: Callable[[float], None]) -> Group:
        """The same ranks again, after one was lost: who holds its part keeps it, and whoever started the lost one
        starts it again at the same address. Raises CannotForm.
        """
        if self._current:
            self._current.close(unload=False)
            self._current = None
        return self._form(report, before.part)

    def _form(self, report: Callable[[float], None], held: Part | None) -> Group:
        ranks = enumerate(self._spec.ranks)
        followers = [Follower(rank, address, self._security) for rank, address in ranks if rank]
        try:
            return self._together(followers, report, held)
        except BaseException:
            for follower in followers:
                follower.close()
            raise

    def _together(self, followers: list[Follower], report: Callable[[float], None], held: Part | None) -> Group:
        spec, layout, security = self._spec, self._layout, self._security
        _greet_all(followers, spec)
        check_sums(layout, spec.transport, {"rank 0": device.backend(), **{f.name: f.hello.device for f in followers}})
        meeting, coordinator = HeldPort(), HeldPort()
        addresses = (self._address, *(follower.place for follower in followers))
        spec = spec.model_copy(update={"ranks": addresses})
        request = _load_request(spec, followers, layout, meeting.number(), coordinator.number(), self._headers)
        progress = _Progress(report)
        parts: list[Part] = []

        def own() -> None:
            meeting.release()
            coordinator.release()
            if held:
                parts.append(rejoin(0, held, request, self._inbox, security))
            else:
                parts.append(take_part(0, spec.model_path, request, self._inbox, partial(progress, 0), security))

        load_all(followers, request, own, progress, spec.start_timeout_seconds)
        part = parts[0]
        _check_dtypes(layout, part.shard.dtype, followers)
        patience = StepPatience(spec.step_timeout_seconds)
        self._current = FollowerGroup(followers, part.lead(), patience, collective=not self.renewable)
        batches = part.shard.stage.batches and all(f.loaded.batches for f in followers)
        return Group(part.shard, self._current, batches, part.disk, part, self)

    def _close(self) -> None:
        if self._current:
            self._current.close()


def _open_own(address: str, security: Security) -> tuple[grpc.Server, str]:
    """Where tensors for the leader arrive, and its address, which the others are told when they load.

    Another leader of the same hostfile may have the port that this gives to rank 0: then any other will do.
    """
    try:
        try:
            return open_server(address, LEADER_THREADS, security)[0], address
        except OSError:
            if address.startswith("unix:") or security.identity:
                raise
            server, elsewhere = open_server(f"{address.rpartition(':')[0]}:0", LEADER_THREADS, security)
            log.info("the port of %s is taken: tensors for rank 0 arrive at %s", address, elsewhere)
            return server, elsewhere
    except OSError as error:
        raise CannotForm(f"rank 0: {error}") from None


def _greet_all(followers: list[Follower], spec: EngineSpec) -> None:
    """All at once, and every rank that does not answer is named, not only the first."""
    failures: list[str] = []

    def greet(follower: Follower) -> None:
        wanted = rank_pb2.PlaceRequest(
            group=spec.group,
            model=spec.model or spec.model_path.name,
            needs=spec.needs[follower.rank] if spec.needs else 0,
            more=spec.cache.memory is None,
            fresh=catalog.get(spec.transport).collective,
        )
        try:
            follower.greet(wanted, spec.start_timeout_seconds)
        except CannotForm as error:
            failures.append(str(error))

    # Threads that nobody waits for when this process is told to end.
    greetings = [threading.Thread(target=greet, args=(follower,), daemon=True) for follower in followers]
    for greeting in greetings:
        greeting.start()
    for greeting in greetings:
        greeting.join()
    if failures:
        raise CannotForm("; ".join(failures))


class _Progress:
    """One fraction for all ranks together, by the bytes that each has read."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._bytes: dict[int, tuple[int, int]] = {}

    def __call__(self, rank: int, done: int, total: int) -> None:
        self._bytes[rank] = done, total
        seen = list(self._bytes.values())
        self._report(sum(done for done, _ in seen) / max(1, sum(total for _, total in seen)))


def _layout(spec: EngineSpec, ranks: int) -> Layout:
    """Who holds what. A division that does not fit the model is told before anything is read."""
    check_transport(spec.parallel, spec.transport)
    stages, members = shape(spec.parallel, ranks, spec.split, spec.weights)
    if stages > 1 and members > 1 and is_preshard(spec.model_path):
        raise CannotForm(
            f"{spec.model_path} was cut for a pipeline or for tensor parallelism: "
            "with --parallel hybrid serve the original folder"
        )
    weights: tuple[int, ...] = (1,)
    if members > 1:
        try:
            weights = divide.check(read_config(spec.model_path), members, spec.weights)
        except (OSError, ValueError) as error:
            raise CannotForm(str(error)) from error
    layout = Layout(choose_split(spec.split, stored_layers(spec.model_path), stages), weights)
    boundaries = [layers_of(stage, layout.split).start for stage in reversed(range(stages - 1))]
    try:
        check_boundaries(read_config(spec.model_path), boundaries)
    except SplitError as error:
        raise CannotForm(str(error)) from error
    return layout


def _check_dtypes(layout: Layout, own: str, followers: list[Follower]) -> None:
    """Sums over ranks need one number type; where machines differ, each may have chosen another."""
    chosen = {0: ("rank 0", own), **{f.rank: (f.name, f.loaded.dtype) for f in followers}}
    for stage in range(layout.stages):
        (first, dtype), *others = (chosen[rank] for rank in layout.stage_ranks(stage))
        if different := [f"{name} uses {its}" for name, its in others if its != dtype]:
            raise CannotForm(
                f"{first} uses {dtype}, but {', '.join(different)}: give --dtype, or use --parallel pipeline, which "
                "may mix"
            )


def _tell(shard: LoadedShard) -> None:
    layers = f"layers {shard.stage.first}-{shard.stage.last - 1}"
    log.info("rank 0 holds %s, %.0f MB: %s", layers, shard.weight_bytes / 1e6, shard.policy.reason)


def _load_options(spec: EngineSpec) -> dict[str, Any]:
    return {
        "dtype": spec.dtype,
        "cpu_products": spec.cpu_products,
        "pack": spec.pack or 0,
        "kv_bits": spec.kv_bits or 0,
        # Ranks of one machine share its memory.
        "memory_fraction": spec.memory_fraction / ranks_here(spec.ranks),
        "trust_remote_code": spec.trust_remote_code,
    }


def check_sums(layout: Layout, transport: str, devices: Mapping[str, str]) -> None:
    on_cuda = [name for name, kind in devices.items() if kind == "cuda"]
    if layout.members > 1 and (refusal := catalog.cuda_refusal(transport, on_cuda)):
        raise CannotForm(refusal)


def _looks_ahead(layout: Layout, followers: list[Follower]) -> bool:
    """Where every stage is one rank that computes on a CPU. A GPU's graph does not wait for a collective: with CUDA it
    hangs, and Metal was never seen.
    """
    return layout.members == 1 and {device.backend(), *(f.hello.device for f in followers)} == {"cpu"}


def _load_request(
    spec: EngineSpec,
    followers: list[Follower],
    layout: Layout,
    meeting_port: int,
    coordinator_port: int,
    headers: bytes,
) -> LoadRequest:
    # Only the host part of an address is a group's business; ranks that meet on Unix sockets meet on loopback.
    ports = [meeting_port, *(follower.hello.collective_port for follower in followers)]
    hosts = ["127.0.0.1" if a.startswith("unix:") else split_member(a)[1].rpartition(":")[0] for a in spec.ranks]
    return LoadRequest(
        session=secrets.randbits(63),
        group=spec.group,
        model_path=str(spec.model_path),
        model=spec.model,
        headers=headers,
        split=layout.split,
        ranks=len(spec.ranks),
        **_load_options(spec),
        policies=spec.policies,
        parallel=spec.parallel,
        weights=layout.weights,
        transport=spec.transport,
        compression=spec.compression,
        addresses=spec.ranks,
        routes=spec.routes,
        ring_hosts=tuple(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)),
        coordinator=spec.coordinator or f"{hosts[0]}:{coordinator_port}",
        rdma_devices=spec.rdma_devices,
        step_timeout_seconds=link_seconds(spec.step_timeout_seconds),
        disk_bytes=spec.disk_bytes,
        disk_folder=str(spec.cache.disk_folder or ""),
        look_ahead=_looks_ahead(layout, followers),
    )
