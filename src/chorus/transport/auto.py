"""Which transport ranks of one machine use where nobody has chosen one, and why."""

from __future__ import annotations

from dataclasses import dataclass

from chorus.platform import mpi
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


def choose_transport(wanted: str, parallel: str) -> str:
    """What was asked for, or what `auto` says."""
    return auto(parallel).transport if wanted == catalog.AUTO else wanted
