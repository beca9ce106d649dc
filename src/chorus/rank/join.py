"""Connects a rank with the others, over whichever transport the plan names."""

from __future__ import annotations

import json

import mlx.core as mx

from chorus.messages.proto import rank_pb2 as wire
from chorus.planning.layout import Layout, Place
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.transport.collective import (
    CannotJoin,
    CollectiveLink,
    join_jaccl,
    join_mpi,
    join_nccl,
    join_ring,
    split_group,
)
from chorus.transport.grpc_link import FrameSender, GrpcLink
from chorus.transport.links import Inbox, Link
from chorus.transport.packing import compression_of


def open_link(place: Place, request: wire.LoadRequest, group: mx.distributed.Group | None, inbox: Inbox) -> Link:
    """A pipeline's neighbours, by gRPC or, where all ranks have formed a group, through that."""
    timeout = request.step_timeout_seconds
    following = place.next_rank
    compression = compression_of(request.compression)
    sender = None
    if following is not None:
        sender = FrameSender(request.addresses[following], timeout, None, compression, request.session)
    if group is None:
        return GrpcLink(sender, inbox, timeout)
    return CollectiveLink(group, following, place.previous_rank, sender, inbox, timeout, request.look_ahead)


def stage_group(world: mx.distributed.Group, layout: Layout, place: Place) -> mx.distributed.Group:
    """The ranks that share a stage's layers: all there are, or a part of them."""
    if layout.stages == 1:
        return world
    with beats.during(Phase.JOINING):
        return split_group(world, place.stage, place.member)


def join_group(rank: int, request: wire.LoadRequest) -> mx.distributed.Group:
    with beats.during(Phase.JOINING):
        return _join(rank, request)


def _join(rank: int, request: wire.LoadRequest) -> mx.distributed.Group:
    match request.transport:
        case "ring":
            return join_ring(rank, request.ring_hosts)
        case "mpi":
            return join_mpi(rank, request.ranks)
        case "jaccl":
            if not request.rdma_devices:
                raise CannotJoin("jaccl needs the RDMA devices of every rank: give a hostfile that has them")
            return join_jaccl(rank, json.loads(request.rdma_devices), request.coordinator)
        case "nccl":
            return join_nccl(rank, request.ranks, request.coordinator)
        case other:
            raise CannotJoin(f"{other} makes no group for tensor parallelism: use ring, mpi, jaccl or nccl")
