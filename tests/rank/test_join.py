"""Where a rank looks for the others."""

from __future__ import annotations

from chorus.messages.load import LoadRequest
from chorus.messages.proto import rank_pb2
from chorus.rank.join import meeting_of
from chorus.transport.meeting import Meeting
from chorus.transport.security import PRIVATE

ADDRESSES = ("a@0.0.0.0:50152", "b@10.1.0.2:50152", "c@10.2.0.3:50153")
RING = ("0.0.0.0:7000", "10.1.0.2:7001", "10.2.0.3:7002")
CABLES = ("", "10.1.0.2", "10.2.0.3", "10.1.0.1", "", "10.3.0.3", "10.2.0.1", "10.3.0.2", "")


def meetings(coordinator: str = "0.0.0.0:7100", routes: tuple[str, ...] = CABLES) -> list[Meeting]:
    assert "routes" in rank_pb2.LoadRequest.DESCRIPTOR.fields_by_name, "all ranks are told the same addresses"
    request = LoadRequest.from_wire(
        rank_pb2.LoadRequest(
            ranks=3,
            split=[1, 1, 1],
            weights=[1],
            addresses=ADDRESSES,
            routes=routes,
            ring_hosts=RING,
            coordinator=coordinator,
        )
    )
    return [meeting_of(rank, request, PRIVATE) for rank in range(3)]


def test_with_a_subnet_per_cable_each_rank_dials_by_its_own_cable() -> None:
    first, second, third = meetings()
    assert third.next_rank == 1
    assert third.addresses == ("a@10.2.0.1:50152", "b@10.3.0.2:50152", "c@10.2.0.3:50153")
    assert second.addresses[0] == "a@10.1.0.1:50152"
    assert first.addresses[1:] == ("b@10.1.0.2:50152", "c@10.2.0.3:50153")


def test_in_a_ring_a_rank_listens_where_the_one_before_it_dials() -> None:
    rings = [meeting.hosts for meeting in meetings()]
    for rank, hosts in enumerate(rings):
        following = (rank + 1) % 3
        assert hosts[following] == rings[following][following]
    assert rings[2] == ("10.2.0.1:7000", "10.3.0.2:7001", "10.3.0.3:7002")


def test_ranks_meet_where_each_reaches_the_leader_or_at_the_place_that_somebody_chose() -> None:
    assert [m.coordinator for m in meetings()] == ["0.0.0.0:7100", "10.1.0.1:7100", "10.2.0.1:7100"]
    assert {m.coordinator for m in meetings("192.168.1.9:7100")} == {"192.168.1.9:7100"}


def test_without_routes_everybody_uses_the_same_addresses() -> None:
    for meeting in meetings(routes=()):
        assert (meeting.addresses, meeting.hosts, meeting.coordinator) == (ADDRESSES, RING, "0.0.0.0:7100")
