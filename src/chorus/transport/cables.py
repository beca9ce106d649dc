"""How machines are cabled for RDMA, and what MLX is told of it. Pure.

A mesh has a cable between every two machines. A ring has one from each rank to the next and from the last to the
first; what MLX is told of the other pairs is nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from chorus.errors import ChorusError
from chorus.platform.network.rdma import RdmaPort
from chorus.transport.meeting import DeviceMatrix

MESH_RANKS = 8
"""MLX's mesh takes no more."""
RING_CABLES = 4
"""As many cables between two neighbours MLX's ring takes."""
_MOST_STEPS = 20_000
"""A search for a ring is given up then: nobody has cabled so many machines by hand."""

JACCL_FIRST = {
    "JACCL_RANK": "MLX_RANK",
    "JACCL_IBV_DEVICES": "MLX_IBV_DEVICES",
    "JACCL_COORDINATOR": "MLX_JACCL_COORDINATOR",
    "JACCL_RING": "MLX_JACCL_RING",
}
"""Names that jaccl believes before those that we set: left over in somebody's shell, they would part the ranks."""
FAST_SYNC = "MLX_METAL_FAST_SYNCH"

Shape = Literal["mesh", "ring"]
Device = str | tuple[str, ...] | None


class NotCabled(ChorusError, ValueError):
    """Machines that cannot exchange sums over RDMA: names the pair, or the port, and what to do."""


@dataclass(frozen=True)
class Cabled:
    """A machine and its RDMA devices that lead to other Macs."""

    name: str
    ports: tuple[RdmaPort, ...] = ()


@dataclass(frozen=True)
class Wiring:
    shape: Shape
    order: tuple[int, ...]
    """Which of the machines is rank 0, 1, …; the first always stays the first."""
    devices: tuple[tuple[Device, ...], ...]
    """Which device, or which several, each rank reaches each other rank by."""


def wire(machines: Sequence[Cabled], keep_order: bool = False) -> Wiring:
    """A mesh where every two machines have a cable between them, else a ring; raises NotCabled."""
    size = len(machines)
    cables = {(a, b): found for a, b in combinations(range(size), 2) if (found := _cables(machines[a], machines[b]))}
    if len(cables) == size * (size - 1) // 2 and 2 <= size <= MESH_RANKS:
        return Wiring("mesh", tuple(range(size)), _matrix(cables, tuple(range(size)), most=1))
    order = tuple(range(size)) if keep_order else _ring(size, cables)
    if order is None or size < 2 or not all(_pair(a, b) in cables for a, b in _neighbours(order)):
        raise NotCabled(_missing(machines, cables))
    return Wiring("ring", order, _matrix(cables, order, most=RING_CABLES))


def shape_of(devices: DeviceMatrix) -> Shape:
    """What MLX can make of such a matrix, or jaccl would wait for ever. Several cables for a pair are used by a ring
    alone; raises NotCabled.
    """
    size = len(devices)
    if size < 2:
        raise NotCabled(f"there are RDMA devices for {size} rank: RDMA needs two")
    for rank, row in enumerate(devices):
        if len(row) != size:
            raise NotCabled(f"the RDMA devices of rank {rank} are {len(row)} for {size} ranks: give one per peer")
        if row[rank] is not None:
            raise NotCabled(f"rank {rank} reaches itself by a device: the matrix has null on its diagonal")
    counts = {(a, b): len(names(devices[a][b])) for a in range(size) for b in range(size) if a != b}
    for a, b in [*_neighbours(range(size)), *((b, a) for a, b in _neighbours(range(size)))]:
        if not counts[a, b]:
            raise NotCabled(
                f"rank {a} reaches rank {b} by no device: a ring needs one from each rank to the next, a mesh one "
                "between every two"
            )
    around = {counts[a, b] for a, b in counts if abs(a - b) in (1, size - 1)}
    whole = all(counts.values()) and size <= MESH_RANKS
    if around == {1}:
        return "mesh" if whole else "ring"
    if len(around) == 1 and max(around) <= RING_CABLES:
        return "ring"
    if whole:
        return "mesh"
    raise NotCabled(
        f"a ring needs equally many devices between all neighbours, at most {RING_CABLES}: these are "
        f"{', '.join(map(str, sorted(around)))}"
    )


def meeting_address(own: Sequence[str], others: Sequence[Sequence[str]]) -> str | None:
    """The first of a machine's addresses (10.0.0.1/24, the best first) in whose network every other machine has one."""
    for text in own:
        here = ipaddress.ip_interface(text)
        if all(any(_address(each) in here.network for each in many) for many in others):
            return str(here.ip)
    return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_interface(text).ip


def names(device: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if device is None else (device,) if isinstance(device, str) else tuple(device)


def environment(settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str | None]:
    """What to set (None: to take away) so that MLX reads `settings` and nothing that says otherwise."""
    ours: dict[str, str | None] = {name: None for both in JACCL_FIRST.items() for name in both if name in inherited}
    return {**ours, **settings}


def remedy(error: str) -> str:
    """What to do about what jaccl said; empty where nothing is known."""
    return next((advice for pattern, advice in _REMEDIES if re.search(pattern, error)), "")


_BRIDGE = (
    "a port that RDMA uses must be no member of a Thunderbolt Bridge and have an IPv4 address of its own: "
    "`chorus doctor` names it"
)
_RESTART = "processes that ended have left RDMA resources behind, which only a restart of this Mac gives back"
_REMEDIES = (
    (r"protection domain|errno:? 16\b|\(16\)|completion queue|[Rr]egister memory region", _RESTART),
    (r"No IPv4-mapped GID|errno:? 22\b", _BRIDGE),
    (
        r"RT[RS] failed with errno 60\b",
        "the other end of a cable did not answer: check that both ends are plugged in and active (`chorus doctor` on "
        "both Macs), and that the ranks meet on Ethernet and not over Thunderbolt (cluster.coordinator)",
    ),
    (
        r"Couldn't connect|errno=60\b",
        "rank 0 was not reached where the ranks meet: give an address of it that all machines reach, best on Ethernet "
        "(cluster.coordinator), and let its firewall pass",
    ),
    (
        r"Couldn't bind|Couldn't listen|Can't parse address",
        "the ranks meet at an IPv4 address and a free port of rank 0: check cluster.coordinator",
    ),
    (r"Could not (find|open) device", "device names change with cables and restarts: `ibv_devices` lists today's"),
    (
        r"Cannot initialize|not available",
        "it needs Apple silicon with Thunderbolt 5 and macOS 26.2 or newer: `chorus doctor` says what is missing",
    ),
)


def _cables(one: Cabled, other: Cabled) -> tuple[tuple[str, str], ...]:
    """The devices at both ends of each cable between two machines, in an order that both ends agree on."""
    ends = {port.own_end: port for port in other.ports if not port.obstacle}
    return tuple(
        (port.device, end.device)
        for port in sorted(one.ports, key=lambda port: port.own_end)
        if not port.obstacle and (end := ends.get(port.other_end)) and end.other_end == port.own_end
    )


_Cables = dict[tuple[int, int], tuple[tuple[str, str], ...]]


def _matrix(cables: _Cables, order: Sequence[int], most: int) -> tuple[tuple[Device, ...], ...]:
    size = len(order)
    full = len(cables) == size * (size - 1) // 2 and most == 1
    wanted = set(cables) if full else {_pair(a, b) for a, b in _neighbours(order)}
    used = min(most, *(len(cables[pair]) for pair in wanted)) if wanted else 0

    def cell(a: int, b: int) -> Device:
        if a == b or _pair(a, b) not in wanted:
            return None
        ends = tuple(cable[a > b] for cable in cables[_pair(a, b)][:used])
        return ends[0] if used == 1 else ends

    return tuple(tuple(cell(a, b) for b in order) for a in order)


def _ring(size: int, cables: _Cables) -> tuple[int, ...] | None:
    """All machines in an order in which each has a cable to the next, and the last one to the first."""
    steps = 0

    def grow(path: tuple[int, ...]) -> tuple[int, ...] | None:
        nonlocal steps
        steps += 1
        if len(path) == size:
            return path if _pair(path[-1], path[0]) in cables else None
        for machine in range(size):
            if steps > _MOST_STEPS:
                return None
            if machine not in path and _pair(path[-1], machine) in cables and (found := grow((*path, machine))):
                return found
        return None

    return grow((0,)) if size > 1 else None


def _missing(machines: Sequence[Cabled], cables: _Cables) -> str:
    """What is in the way: a port that cannot be used, else the first pair without a cable."""
    if len(machines) < 2:
        return "RDMA needs two machines"
    for machine in machines:
        for port in machine.ports:
            if port.obstacle:
                return f"RDMA cannot use {port.device} of {machine.name}: {port.obstacle}; see `chorus doctor` there"
    for machine in machines:
        if not machine.ports:
            return f"{machine.name} has no RDMA device with a cable to another Mac: see `chorus doctor` there"
    apart = [(a, b) for a, b in combinations(range(len(machines)), 2) if (a, b) not in cables]
    if not apart:
        return f"RDMA joins at most {MESH_RANKS} machines in a mesh, and there is no ring of cables through all of them"
    one, other = (machines[index].name for index in apart[0])
    return (
        f"there is no Thunderbolt cable between {one} and {other}, and no ring of cables through all machines: plug "
        "one in, or leave the transport to auto"
    )


def _neighbours(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    for place, machine in enumerate(order):
        yield machine, order[(place + 1) % len(order)]


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
