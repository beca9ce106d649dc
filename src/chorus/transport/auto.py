"""Which transport ranks use where nobody has chosen one, and why."""

from __future__ import annotations

from dataclasses import dataclass

from chorus.platform.accelerator import mpi
from chorus.transport import catalog


@dataclass(frozen=True)
class Chosen:
    transport: str
    why: str


def auto(parallel: str) -> Chosen:
    if parallel == "pipeline":
        return Chosen("grpc", "stages need no group, and over grpc a lost one is started again alone")
    if parallel == "hybrid":
        return Chosen("mpi", "no other transport makes a group for each stage and passes activations between them")
    if mpi.launcher() and mpi.library():
        return Chosen("mpi", "it is installed, and its sums are the quickest on one machine")
    return Chosen("ring", "mpi is not installed, and MLX always has a ring")


def auto_over_machines(parallel: str, not_cabled: str | None) -> Chosen:
    """As `auto`, for one rank on each of several machines; `not_cabled` says why RDMA cannot be used, None: it can."""
    if parallel != "tensor":
        return auto(parallel)
    if not_cabled is None:
        return Chosen("jaccl", "every machine has RDMA, and the cables between them make a mesh or a ring")
    return Chosen("ring", f"MLX always has a ring; RDMA is quicker, but {not_cabled}")


def choose_transport(wanted: str, parallel: str) -> str:
    """What was asked for, or what `auto` says."""
    return auto(parallel).transport if wanted == catalog.AUTO else wanted
