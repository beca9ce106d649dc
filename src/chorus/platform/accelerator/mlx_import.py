"""Whether MLX can be imported on this machine, and what to do where it cannot: on Linux its backend is a wheel of its
own. Imports no MLX.
"""

from __future__ import annotations

import re
import subprocess
import sys

from chorus.errors import ChorusError
from chorus.platform import system
from chorus.platform.accelerator import device
from chorus.platform.cpu.renamed_blas import libmlx, package_folder
from chorus.platform.install import install_hint

_SECONDS = 120.0
_OF_CUDA = re.compile(r"\blib(cu|nv|nccl)|cuda", re.IGNORECASE)


class NoMlx(ChorusError):
    """No rank could start here, because MLX cannot be imported: says what is missing and what to install."""


def require_mlx() -> None:
    """Raise NoMlx where a rank could not import MLX. Only where its files look wrong is that tried, since it takes a
    while, and then in a process of its own, which it may end.
    """
    if not _looks_whole() and (problem := _try_import()):
        raise NoMlx(explain(problem))


def explain(problem: str) -> str:
    """One line about an import that failed with this message: what that means here, and the remedy."""
    problem = problem.removeprefix("ModuleNotFoundError: ").removeprefix("ImportError: ")
    if "libmlx" in problem:
        what = "MLX has no backend on this machine"
    elif "No module named 'mlx" in problem:
        what = "MLX is not installed"
    elif _OF_CUDA.search(problem):
        what = "the CUDA backend of MLX cannot be loaded, which needs an NVIDIA GPU and its driver"
    else:
        what = "a library cannot be loaded"
    return f"{what} ({problem}): {remedy(problem)}"


def remedy(problem: str) -> str:
    """What to do about an import that failed with this message."""
    wheels = [name for name in ("mlx-cpu", *device.CUDA_PACKAGES) if device.installed(name)]
    if "CHORUS_BLAS" in problem:
        return "correct or unset CHORUS_BLAS"
    if "libmlx" not in problem and _OF_CUDA.search(problem):
        return f"where there is none, pip uninstall {' '.join(wheels)}, then {install_hint()}"
    # A wheel that is listed and lacks its files lost them to another one.
    return install_hint(options="--force-reinstall" if wheels else "")


def _looks_whole() -> bool:
    if not system.is_linux():
        return package_folder("mlx") is not None
    driver_needed = any(device.installed(name) for name in device.CUDA_PACKAGES)
    return libmlx() is not None and (not driver_needed or device.backend() == "cuda")


def _try_import() -> str | None:
    """The last line of what Python said; None where MLX could be imported after all."""
    command = [sys.executable, "-c", "import mlx.core"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
