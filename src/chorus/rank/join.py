"""Connects a rank with the others, over whichever transport the leader names."""

from __future__ import annotations

from chorus.messages.load import LoadRequest
from chorus.planning.layout import Layout
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
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
    return Meeting(
        rank=rank,
        ranks=request.ranks,
        stage=place.stage,
        stages=layout.stages,
        member=place.member,
        members=layout.members,
        previous_rank=place.previous_rank,
        next_rank=place.next_rank,
        addresses=request.addresses,
        hosts=request.ring_hosts,
        coordinator=request.coordinator,
        rdma_devices=request.rdma_devices,
        step_timeout=request.step_timeout_seconds,
        compression=compression_of(request.compression),
        look_ahead=request.look_ahead,
        session=request.session,
        security=security,
    )
