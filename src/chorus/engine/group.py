"""Forms the group of ranks that holds one model: greet, load together, connect."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from chorus.engine.followers import (
    CannotForm,
    Follower,
    FollowerGroup,
    PipelineFollowers,
    TensorFollowers,
    load_all,
)
from chorus.engine.spec import EngineSpec
from chorus.platform.memory import device_memory
from chorus.proto import rank_pb2 as wire
from chorus.shard import tensor
from chorus.shard.architectures import SplitError
from chorus.shard.join import join_group, open_link
from chorus.shard.load import LoadedShard, load_shard, load_slices, stored_layers
from chorus.shard.pipeline import check_split
from chorus.shard.runner import Runner
from chorus.shard.split import choose_split, layers_of
from chorus.shard.upstream_weights import read_config
from chorus.shard.worker import PUT_TIMEOUT_SECONDS, free_port
from chorus.transport.channel import open_server
from chorus.transport.grpc_link import tensor_service
from chorus.transport.links import Inbox, Link

log = logging.getLogger("chorus.engine")

LEADER_THREADS = 4


@dataclass(frozen=True)
class Group:
    shard: LoadedShard
    followers: FollowerGroup | None
    batches: bool

    def cache_tokens(self, own: Runner, fraction: float) -> int | None:
        """How many tokens the tightest rank has memory for; None where a token costs nothing (states, windows)."""
        ranks = [(own.cache_bytes_per_token, device_memory(mx).available)]
        ranks += [(f.cache_bytes_per_token, f.free_bytes) for f in (self.followers.followers if self.followers else ())]
        room = [int(free * fraction) // cost for cost, free in ranks if cost]
        return min(room, default=None)

    @property
    def lookahead(self) -> bool:
        """A pipeline's first stage needs the tokens themselves; everybody else takes them from the graph."""
        return not isinstance(self.followers, PipelineFollowers)


def form_group(spec: EngineSpec, report: Callable[[float], None], cleanup: contextlib.ExitStack) -> Group:
    ranks = max(1, len(spec.ranks))
    if ranks == 1:
        shard = load_shard(
            spec.model_path,
            lambda layers: layers_of(0, choose_split(spec.split, layers, 1)),
            **_load_options(spec),
            progress=lambda done, total: report(done / max(total, 1)),
        )
        _tell(shard)
        return Group(shard, None, shard.stage.batches)
    weights = _check_division(spec, ranks)
    inbox = Inbox()
    server, _ = open_server(spec.ranks[0], LEADER_THREADS)
    server.add_generic_rpc_handlers((tensor_service(inbox, PUT_TIMEOUT_SECONDS),))
    server.start()
    cleanup.callback(lambda: server.stop(grace=0).wait(2.0))
    followers = [Follower(rank, address) for rank, address in enumerate(spec.ranks) if rank]
    _greet_all(followers, spec.start_timeout_seconds)
    request = _load_request(spec, followers, weights)
    progress = _Progress(report)
    places: list[_Place] = []

    def own() -> None:
        places.append(_take_place(spec, request, inbox, lambda done, total: progress(0, done, total)))

    load_all(followers, request, own, progress, spec.start_timeout_seconds)
    place = places[0]
    if spec.parallel == "tensor":
        _check_same_dtype(place.shard, followers)
    chain = place.lead(followers, spec.step_timeout_seconds)
    cleanup.callback(chain.close)
    _tell(place.shard)
    return Group(place.shard, chain, place.shard.stage.batches and all(f.loaded.batches for f in followers))


def _greet_all(followers: list[Follower], timeout: float) -> None:
    """All at once, and every rank that does not answer is named, not only the first."""
    with ThreadPoolExecutor(len(followers)) as pool:
        greetings = [pool.submit(follower.greet, timeout) for follower in followers]
    failures = [str(error) for greeting in greetings if (error := greeting.exception())]
    if failures:
        raise CannotForm("; ".join(failures))


@dataclass(frozen=True)
class _Place:
    """What the leader itself holds, and how it is connected with the others."""

    shard: LoadedShard
    link: Link | None = None
    group: mx.distributed.Group | None = None

    def lead(self, followers: list[Follower], step_timeout: float) -> FollowerGroup:
        if self.group is not None:
            return TensorFollowers(followers, self.group, step_timeout)
        assert self.link is not None
        return PipelineFollowers(followers, self.link, step_timeout)


class _Progress:
    """One fraction for all ranks together, by the bytes that each has read."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._bytes: dict[int, tuple[int, int]] = {}

    def __call__(self, rank: int, done: int, total: int) -> None:
        self._bytes[rank] = done, total
        seen = list(self._bytes.values())
        self._report(sum(done for done, _ in seen) / max(1, sum(total for _, total in seen)))


def _check_division(spec: EngineSpec, ranks: int) -> tuple[int, ...]:
    """A division that does not fit the model is told before anything is read. Returns the weights of a tensor group."""
    if spec.parallel == "tensor":
        if spec.split:
            raise CannotForm("a split divides layers among stages: with --parallel tensor give --weights instead")
        try:
            return tensor.check(read_config(spec.model_path), ranks, spec.weights)
        except (tensor.TensorError, OSError, ValueError) as error:
            raise CannotForm(str(error)) from error
    if spec.weights:
        raise CannotForm("weights divide every layer: with --parallel pipeline give --split instead")
    layers = stored_layers(spec.model_path)
    split = choose_split(spec.split, layers, ranks)
    try:
        check_split(read_config(spec.model_path), [layers_of(rank, split).start for rank in reversed(range(ranks - 1))])
    except SplitError as error:
        raise CannotForm(str(error)) from error
    return ()


def _check_same_dtype(own: LoadedShard, followers: list[Follower]) -> None:
    """Sums over ranks need one number type; where machines differ, each may have chosen another."""
    others = {f.name: f.loaded.dtype for f in followers if f.loaded.dtype != own.policy.dtype}
    if others:
        told = ", ".join(f"{name} uses {dtype}" for name, dtype in others.items())
        raise CannotForm(
            f"rank 0 uses {own.policy.dtype}, but {told}: give --dtype, or use --parallel pipeline, which may mix"
        )


def _take_place(
    spec: EngineSpec, request: wire.LoadRequest, inbox: Inbox, progress: Callable[[int, int], None]
) -> _Place:
    if spec.parallel == "tensor":
        group = join_group(0, request)
        plan = tensor.TensorPlan(0, tuple(request.weights))
        shard = load_slices(spec.model_path, plan, group, **_load_options(spec), progress=progress)
        return _Place(shard, group=group)
    link = open_link(0, request, inbox)
    shard = load_shard(
        spec.model_path,
        lambda layers: layers_of(0, choose_split(spec.split, layers, request.ranks)),
        **_load_options(spec),
        progress=progress,
    )
    return _Place(shard, link=link)


def _tell(shard: LoadedShard) -> None:
    layers = f"layers {shard.stage.first}-{shard.stage.last - 1}"
    log.info("rank 0 holds %s, %.0f MB: %s", layers, shard.weight_bytes / 1e6, shard.policy.reason)


def _load_options(spec: EngineSpec) -> dict[str, Any]:
    return {
        "dtype": spec.dtype,
        # Ranks of one machine share its memory.
        "memory_fraction": spec.memory_fraction / max(1, sum(a.startswith("unix:") for a in spec.ranks)),
        "trust_remote_code": spec.trust_remote_code,
    }


def _load_request(spec: EngineSpec, followers: list[Follower], weights: tuple[int, ...]) -> wire.LoadRequest:
    # Only the host part of an address is a ring's business; ranks that meet on Unix sockets meet on loopback.
    ports = [free_port(), *(follower.hello.collective_port for follower in followers)]
    hosts = ["127.0.0.1" if a.startswith("unix:") else a.rpartition(":")[0] for a in spec.ranks]
    return wire.LoadRequest(
        model_path=str(spec.model_path),
        model=spec.model,
        split=spec.split or (),
        ranks=len(spec.ranks),
        **_load_options(spec),
        parallel=spec.parallel,
        weights=weights,
        transport=spec.transport,
        addresses=spec.ranks,
        ring_hosts=[f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)],
        coordinator=spec.coordinator or f"{hosts[0]}:{free_port()}",
        rdma_devices=json.dumps(spec.rdma_devices) if spec.rdma_devices else "",
        step_timeout_seconds=spec.step_timeout_seconds,
    )
