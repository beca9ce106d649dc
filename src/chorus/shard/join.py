"""Connects a rank with the others, over whichever transport the plan names."""

from __future__ import annotations

import json

import mlx.core as mx

from chorus.proto import rank_pb2 as wire
from chorus.transport.collective import CannotJoin, CollectiveLink, join_jaccl, join_mpi, join_nccl, join_ring
from chorus.transport.grpc_link import FrameSender, GrpcLink
from chorus.transport.links import Inbox, Link


def open_link(rank: int, request: wire.LoadRequest, inbox: Inbox) -> Link:
    """A pipeline's neighbours: the highest rank is the first stage, each passes on to the rank below it."""
    timeout = request.step_timeout_seconds
    next_rank = rank - 1 if rank > 0 else None
    previous_rank = rank + 1 if rank + 1 < request.ranks else None
    if request.transport == "nccl":
        raise CannotJoin("nccl cannot pass activations from stage to stage: use --transport grpc for pipelines")
    group = None if request.transport == "grpc" else join_group(rank, request)
    sender = FrameSender(request.addresses[next_rank], timeout) if next_rank is not None else None
    if group is None:
        return GrpcLink(sender, inbox, timeout)
    return CollectiveLink(group, next_rank, previous_rank, sender, inbox, timeout)


def join_group(rank: int, request: wire.LoadRequest) -> mx.distributed.Group:
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
