"""Open MPI as pip installs it: beside python, where neither the linker nor MLX looks by itself."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from chorus.platform import system

LIBRARY_VARIABLE = "MLX_MPI_LIBNAME"


def library() -> Path | None:
    """The library to name in MLX_MPI_LIBNAME; None where there is none to be found."""
    if given := os.environ.get(LIBRARY_VARIABLE):
        return Path(given)
    folders = [
        Path(sys.prefix) / "lib",
        Path("/usr/lib") / str(sysconfig.get_config_var("MULTIARCH")),
        Path("/usr/lib"),
    ]
    names = ("libmpi.40.dylib", "libmpi.dylib") if system.is_mac() else ("libmpi.so.40", "libmpi.so")
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)


def launcher() -> Path | None:
    beside_python = Path(sysconfig.get_path("scripts")) / "mpirun"
    if beside_python.is_file():
        return beside_python
    on_path = shutil.which("mpirun")
    return Path(on_path) if on_path else None


def own_rank() -> int:
    """Which of the processes of one mpirun this is; 0 where there is none."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
