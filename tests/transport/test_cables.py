"""How machines are cabled, and what MLX is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest

from chorus.platform.network.rdma import RdmaPort
from chorus.transport.cables import Cabled, NotCabled, meeting_address, shape_of, wire


def machines(size: int, pairs: Iterable[tuple[int, int]]) -> list[Cabled]:
    """Machines whose ports are taken in the order of the cables."""
    ports: list[list[RdmaPort]] = [[] for _ in range(size)]
    for number, (a, b) in enumerate(pairs):
        ports[a].append(RdmaPort(f"rdma_en{len(ports[a]) + 2}", f"{number}A", f"{number}B"))
        ports[b].append(RdmaPort(f"rdma_en{len(ports[b]) + 2}", f"{number}B", f"{number}A"))
    return [Cabled(f"mac{index}", tuple(own)) for index, own in enumerate(ports)]


def around(size: int) -> list[tuple[int, int]]:
    return [(rank, (rank + 1) % size) for rank in range(size)]


def test_two_cables_between_two_macs_are_one_mesh_with_both_ends_of_one_cable() -> None:
    crossed = [
        Cabled("a", (RdmaPort("rdma_en2", "A2", "B3"), RdmaPort("rdma_en3", "A3", "B2"))),
        Cabled("b", (RdmaPort("rdma_en2", "B2", "A3"), RdmaPort("rdma_en3", "B3", "A2"))),
    ]
    wiring = wire(crossed)
    assert wiring.shape == "mesh"
    assert wiring.devices == ((None, "rdma_en2"), ("rdma_en3", None))


def test_a_ring_is_found_whatever_the_order_of_the_machines() -> None:
    wiring = wire(machines(5, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 0)]))
    assert wiring.shape == "ring"
    assert wiring.order in ((0, 3, 1, 4, 2), (0, 2, 4, 1, 3))
    assert shape_of(wiring.devices) == "ring"
    with pytest.raises(NotCabled, match="no Thunderbolt cable between mac0 and mac1"):
        wire(machines(5, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 0)]), keep_order=True)


def test_a_ring_uses_as_many_cables_as_all_neighbours_have() -> None:
    twice = wire(machines(4, [*around(4), *around(4)]))
    assert all(isinstance(cell, tuple) and len(cell) == 2 for row in twice.devices for cell in row if cell)
    once = wire(machines(4, [*around(4), (0, 1)]))
    assert all(isinstance(cell, str) for row in once.devices for cell in row if cell)


def test_nine_machines_with_all_cables_are_a_ring() -> None:
    assert wire(machines(9, combinations(range(9), 2))).shape == "ring"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotCabled, match="no Thunderbolt cable between mac1 and mac2"):
        wire(machines(3, [(0, 1), (0, 2)]))
    with pytest.raises(NotCabled, match="mac2 has no RDMA device with a cable"):
        wire(machines(3, [(0, 1)]))
    one, other = machines(2, [(0, 1)])
    bridged = Cabled("mac1", (RdmaPort("rdma_en2", "0B", "0A", "en2 is a member of bridge0"),))
    with pytest.raises(NotCabled, match="cannot use rdma_en2 of mac1: en2 is a member of bridge0"):
        wire([one, bridged])
    with pytest.raises(NotCabled):
        wire([one, Cabled("somebody else's", (RdmaPort("rdma_en2", "0B", "9Z"),))])
    assert wire([one, other]).shape == "mesh"


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ([[None]], "RDMA needs two"),
        ([[None, "a", None], ["a", None, "b"], ["b", "a", None]], "rank 0 reaches rank 2 by no device"),
        (
            [
                [None, ["a", "b"], None, "c"],
                [["a", "b"], None, "c", None],
                [None, "a", None, "b"],
                ["a", None, "b", None],
            ],
            "equally many devices",
        ),
    ],
)
def test_a_matrix_that_mlx_could_not_use_is_refused(devices: list[list[str | None]], error: str) -> None:
    with pytest.raises(NotCabled, match=error):
        shape_of(devices)


def test_ranks_meet_where_every_machine_has_an_address() -> None:
    own = ("192.168.1.5/24", "10.0.1.1/30")
    assert meeting_address(own, [("192.168.1.7/24",), ("192.168.1.9/24", "10.0.1.2/30")]) == "192.168.1.5"
    assert meeting_address(own, [("10.0.1.2/30",)]) == "10.0.1.1"
    assert meeting_address(own, [("172.16.0.2/24",)]) is None
    assert meeting_address((), [("10.0.1.2/30",)]) is None
