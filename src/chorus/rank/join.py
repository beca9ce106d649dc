"""Connects a rank with the others, over whichever transport the leader names."""

from __future__ import annotations

from chorus.messages.load import LoadRequest
from chorus.planning.layout import Layout
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.security.names import split_member
from chorus.transport import catalog
from chorus.transport.links import Inbox
from chorus.transport.meeting import Connection, Meeting
from chorus.transport.packing import compression_of
from chorus.transport.security import PRIVATE, Security


def connect(rank: int, request: LoadRequest, inbox: Inbox, security: Security = PRIVATE) -> Connection:
    meeting = meeting_of(rank, request, security)
    transport = catalog.get(request.transport)
    with beats.during(Phase.JOINING):
        connection: Connection = catalog.resolve(transport.opens)(meeting, inbox)
    return connection


def layout_of(request: LoadRequest) -> Layout:
    return Layout(request.split, request.weights)


def meeting_of(rank: int, request: LoadRequest, security: Security) -> Meeting:
    layout = layout_of(request)
    place = layout.place(rank)
    reached = routes_from(rank, request)
    # In a group a rank listens where the one before it in the ring looks for it.
    listening = [*reached[:rank], routes_from((rank - 1) % request.ranks, request)[rank], *reached[rank + 1 :]]
    return Meeting(
        rank=rank,
        ranks=request.ranks,
        stage=place.stage,
        stages=layout.stages,
        member=place.member,
        members=layout.members,
        previous_rank=place.previous_rank,
        next_rank=place.next_rank,
        addresses=tuple(map(_at, request.addresses, reached)),
        hosts=tuple(map(_at, request.ring_hosts, listening)),
        coordinator=_at(request.coordinator, reached[0]) if _with_leader(request) else request.coordinator,
        rdma_devices=request.rdma_devices,
        step_timeout=request.step_timeout_seconds,
        compression=compression_of(request.compression),
        look_ahead=request.look_ahead,
        session=request.session,
        security=security,
    )


def routes_from(rank: int, request: LoadRequest) -> tuple[str, ...]:
    """At which host this rank reaches each; empty: where everybody does."""
    row = request.routes[rank * request.ranks : (rank + 1) * request.ranks]
    return row if len(row) == request.ranks else ("",) * request.ranks


def _with_leader(request: LoadRequest) -> bool:
    """Whether ranks meet where the leader listens, and not at a place that somebody chose."""
    return bool(request.addresses) and _host(request.coordinator) == _host(request.addresses[0])


def _host(address: str) -> str:
    return split_member(address)[1].rpartition(":")[0]


def _at(address: str, host: str) -> str:
    """The same member and port at another host."""
    if not host:
        return address
    member, place = split_member(address)
    found = f"{host}:{place.rpartition(':')[2]}"
    return f"{member}@{found}" if member else found
