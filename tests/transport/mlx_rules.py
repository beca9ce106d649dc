"""By which rules MLX 0.32 reads the environment of a ring and of jaccl, each with where it stands in MLX's sources.

jaccl is not in the wheels for Linux, so what its reader would say is said here: a rule for each check and each silent
assumption, applied to the variables and files that a rank has set when it calls `mx.distributed.init`.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

JACCL = "mlx/distributed/jaccl/lib/jaccl"
MESH_MAX_PEERS = 8
RING_MAX_CONNS = 4


@dataclass(frozen=True)
class Environment:
    """What a rank has set: variables, and the content of the files that they name."""

    variables: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    def first(self, *names: str) -> str | None:
        """As jaccl asks: its own name before MLX's."""
        return next((self.variables[name] for name in names if name in self.variables), None)

    def json(self, *names: str) -> Any:
        return json.loads(self.files[next(name for name in names if name in self.variables)])

    @property
    def rank(self) -> int:
        return int(self.first("JACCL_RANK", "MLX_RANK") or "0")

    @cached_property
    def hosts(self) -> list[list[str]]:
        return self.json("MLX_HOSTFILE")

    @cached_property
    def cells(self) -> list[list[list[str]]]:
        rows = self.json("JACCL_IBV_DEVICES", "MLX_IBV_DEVICES")
        return [[[c] if isinstance(c, str) else list(c or []) for c in row] for row in rows]

    @property
    def coordinator(self) -> str:
        return self.first("JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR") or ""

    @cached_property
    def is_mesh(self) -> bool:
        cells = self.cells
        size = len(cells)
        return size > 1 and all(bool(cells[a][b]) == (a != b) for a in range(size) for b in range(size))

    @cached_property
    def is_ring(self) -> bool:
        cells = self.cells
        size = len(cells)
        return size > 1 and all(
            len(cells[a][(a + step) % size]) == len(cells[0][1]) for a in range(size) for step in (1, -1)
        )

    @cached_property
    def becomes(self) -> str:
        prefers_ring = self.first("JACCL_RING", "MLX_JACCL_RING") is not None
        if prefers_ring and self.is_ring:
            return "ring"
        return "mesh" if self.is_mesh else "ring" if self.is_ring else "nothing"


@dataclass(frozen=True)
class Rule:
    says: str
    where: str
    holds: Callable[[Environment], bool]


def _ipv4_and_port(text: str) -> bool:
    host, colon, port = text.partition(":")
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return bool(colon) and port.isdigit() and 0 < int(port) < 65536


RING = (
    Rule(
        "MLX_RANK and MLX_HOSTFILE are both set",
        "ring/ring.cpp init",
        lambda e: {"MLX_RANK", "MLX_HOSTFILE"} <= e.variables.keys(),
    ),
    Rule(
        "the rank is a number",
        "ring/ring.cpp init: atoi takes anything else for 0",
        lambda e: str(e.rank) == e.variables["MLX_RANK"],
    ),
    Rule(
        "the file is a list of lists of texts",
        "ring/ring.cpp load_nodes",
        lambda e: all(isinstance(t, str) for row in e.hosts for t in row),
    ),
    Rule("a ring of one connects to itself and waits", "ring/ring.cpp RingGroup", lambda e: len(e.hosts) > 1),
    Rule("the rank is below the number of hosts", "ring/ring.cpp RingGroup", lambda e: 0 <= e.rank < len(e.hosts)),
    Rule("every host has an address", "ring/ring.cpp RingGroup: no sockets to the right", lambda e: all(e.hosts)),
    Rule(
        "every host has equally many",
        "ring/ring.cpp RingGroup: as many connections to the left as to the right",
        lambda e: len({len(row) for row in e.hosts}) == 1,
    ),
    Rule(
        "an address is IPv4:PORT: it is cut at the first colon, and sockets are AF_INET",
        "distributed/utils.cpp parse_address, TCPSocket",
        lambda e: all(_ipv4_and_port(text) for row in e.hosts for text in row),
    ),
    Rule(
        "no address is listened on twice",
        "distributed/utils.cpp listen: SO_REUSEPORT hides it",
        lambda e: len({t for row in e.hosts for t in row}) == sum(map(len, e.hosts)),
    ),
)

JACCL_RULES = (
    Rule(
        "rank, devices and coordinator are set",
        f"{JACCL}/jaccl.cpp Config::from_env",
        lambda e: {"MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR"} <= e.variables.keys(),
    ),
    Rule(
        "none of the names that go before them says otherwise",
        f"{JACCL}/jaccl.cpp getenv",
        lambda e: not any(name.startswith("JACCL_") for name in e.variables),
    ),
    Rule("the rank is a number", f"{JACCL}/jaccl.cpp set_rank: atoi", lambda e: str(e.rank) == e.variables["MLX_RANK"]),
    Rule("the rank is below the number of rows", f"{JACCL}/jaccl.cpp is_valid", lambda e: 0 <= e.rank < len(e.cells)),
    Rule(
        "the file is a square list of lists",
        f"{JACCL}/jaccl.cpp parse_devices_json",
        lambda e: all(len(row) == len(e.cells) for row in e.cells),
    ),
    Rule(
        "a cell is null, a text or a list of texts",
        f"{JACCL}/jaccl.cpp parse_devices_json",
        lambda e: all(isinstance(name, str) and name for row in e.cells for cell in row for name in cell),
    ),
    Rule(
        "nobody reaches itself",
        f"{JACCL}/jaccl.cpp is_valid_mesh",
        lambda e: not any(row[a] for a, row in enumerate(e.cells)),
    ),
    Rule("it is a mesh or a ring", f"{JACCL}/jaccl.cpp init", lambda e: e.becomes != "nothing"),
    Rule(
        "a mesh has at most 8 ranks",
        f"{JACCL}/mesh.cpp MeshGroup, mesh_impl.h",
        lambda e: e.becomes != "mesh" or len(e.cells) <= MESH_MAX_PEERS,
    ),
    Rule(
        "neighbours in a ring have one cable or more: none passes every check and connects nobody",
        f"{JACCL}/jaccl.cpp is_valid_ring",
        lambda e: e.becomes != "ring" or bool(e.cells[0][1]),
    ),
    Rule(
        "neighbours in a ring have at most 4",
        f"{JACCL}/ring.cpp RingGroup, ring_impl.h",
        lambda e: e.becomes != "ring" or len(e.cells[0][1]) <= RING_MAX_CONNS,
    ),
    Rule(
        "a pair has a device at both ends or at none: a queue pair is met by its like",
        f"{JACCL}/mesh.cpp initialize, ring.cpp initialize",
        lambda e: all(
            len(e.cells[a][b]) == len(e.cells[b][a]) for a in range(len(e.cells)) for b in range(len(e.cells))
        ),
    ),
    Rule(
        "the coordinator is IPv4:PORT: it is cut at the first colon, and sockets are AF_INET",
        f"{JACCL}/tcp.cpp parse_address, TCPSocket",
        lambda e: _ipv4_and_port(e.coordinator),
    ),
    Rule(
        "MLX_METAL_FAST_SYNCH is not set: it may lock up the GPU until a restart",
        "mlx/docs/src/usage/distributed.rst",
        lambda e: "MLX_METAL_FAST_SYNCH" not in e.variables,
    ),
)

RULES = {"ring": RING, "jaccl": JACCL_RULES}


def broken(backend: str, environment: Environment) -> list[str]:
    """The rules that this environment breaks."""
    return [f"{rule.says} ({rule.where})" for rule in RULES[backend] if not rule.holds(environment)]
