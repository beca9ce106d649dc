"""Connects a rank to its neighbours, over whichever transport the plan names."""

from __future__ import annotations

from chorus.proto import rank_pb2 as wire
from chorus.transport.collective import CollectiveLink, join_mpi, join_ring
from chorus.transport.grpc_link import FrameSender, GrpcLink
from chorus.transport.links import Inbox, Link


def open_link(rank: int, request: wire.LoadRequest, inbox: Inbox) -> Link:
    """The highest rank is the first stage; each passes on to the rank below it."""
    timeout = request.step_timeout_seconds
    next_rank = rank - 1 if rank > 0 else None
    previous_rank = rank + 1 if rank + 1 < request.ranks else None
    sender = FrameSender(request.addresses[next_rank], timeout) if next_rank is not None else None
    match request.transport:
        case "grpc":
            return GrpcLink(sender, inbox, timeout)
        case "ring":
            group = join_ring(rank, request.ring_hosts)
        case "mpi":
            group = join_mpi(rank, request.ranks)
        case unknown:
            raise ValueError(f"transport {unknown!r} is not known: use grpc, ring or mpi")
    return CollectiveLink(group, next_rank, previous_rank, sender, inbox, timeout)
