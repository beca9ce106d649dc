"""Forms the group of ranks that holds one model: greet, load together, connect."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chorus.engine.followers import Follower, PipelineFollowers, load_all
from chorus.engine.spec import EngineSpec
from chorus.proto import rank_pb2 as wire
from chorus.shard.join import open_link
from chorus.shard.load import LoadedShard, load_shard, stored_layers
from chorus.shard.split import choose_split, layers_of
from chorus.shard.worker import PUT_TIMEOUT_SECONDS, free_port
from chorus.transport.channel import open_server
from chorus.transport.grpc_link import tensor_service
from chorus.transport.links import Inbox, Link

log = logging.getLogger("chorus.engine")

LEADER_THREADS = 4


@dataclass(frozen=True)
class Group:
    shard: LoadedShard
    followers: PipelineFollowers | None
    batches: bool


def form_group(spec: EngineSpec, report: Callable[[float], None], cleanup: contextlib.ExitStack) -> Group:
    ranks = max(1, len(spec.ranks))
    choose_split(spec.split, stored_layers(spec.model_path), ranks)  # a wrong split is told before anything is read
    if ranks == 1:
        shard = _load_own(spec, 1, lambda done, total: report(done / max(total, 1)))
        return Group(shard, None, shard.stage.batches)
    inbox = Inbox()
    server, _ = open_server(spec.ranks[0], LEADER_THREADS)
    server.add_generic_rpc_handlers((tensor_service(inbox, PUT_TIMEOUT_SECONDS),))
    server.start()
    cleanup.callback(lambda: server.stop(grace=0).wait(2.0))
    followers = [Follower(rank, address) for rank, address in enumerate(spec.ranks) if rank]
    with ThreadPoolExecutor(len(followers)) as pool:
        list(pool.map(lambda follower: follower.greet(spec.start_timeout_seconds), followers))
    request = _load_request(spec, followers)
    loaded: list[tuple[Link, LoadedShard]] = []
    bytes_of: dict[int, tuple[int, int]] = {}

    def progress(rank: int, done: int, total: int) -> None:
        bytes_of[rank] = done, total
        report(sum(done for done, _ in bytes_of.values()) / max(1, sum(total for _, total in bytes_of.values())))

    def own() -> None:
        link = open_link(0, request, inbox)
        loaded.append((link, _load_own(spec, ranks, lambda done, total: progress(0, done, total))))

    load_all(followers, request, own, progress, spec.start_timeout_seconds)
    link, shard = loaded[0]
    chain = PipelineFollowers(followers, link, spec.step_timeout_seconds)
    cleanup.callback(chain.close)
    return Group(shard, chain, shard.stage.batches and all(follower.loaded.batches for follower in followers))


def _load_own(spec: EngineSpec, ranks: int, progress: Callable[[int, int], None]) -> LoadedShard:
    shard = load_shard(
        spec.model_path,
        lambda layers: layers_of(0, choose_split(spec.split, layers, ranks)),
        dtype=spec.dtype,
        memory_fraction=spec.memory_fraction,
        trust_remote_code=spec.trust_remote_code,
        progress=progress,
    )
    layers = f"layers {shard.stage.first}-{shard.stage.last - 1}"
    log.info("rank 0 holds %s, %.0f MB: %s", layers, shard.weight_bytes / 1e6, shard.policy.reason)
    return shard


def _load_request(spec: EngineSpec, followers: list[Follower]) -> wire.LoadRequest:
    # Only the host part of an address is a ring's business; ranks that meet on Unix sockets meet on loopback.
    ports = [free_port(), *(follower.hello.collective_port for follower in followers)]
    hosts = ["127.0.0.1" if a.startswith("unix:") else a.rpartition(":")[0] for a in spec.ranks]
    return wire.LoadRequest(
        model_path=str(spec.model_path),
        split=spec.split or (),
        ranks=len(spec.ranks),
        dtype=spec.dtype,
        memory_fraction=spec.memory_fraction / len(spec.ranks),
        trust_remote_code=spec.trust_remote_code,
        transport=spec.transport,
        addresses=spec.ranks,
        ring_hosts=[f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)],
        step_timeout_seconds=spec.step_timeout_seconds,
    )
