"""What is installed on this machine, and whether it works: checks on `Facts`."""

from __future__ import annotations

from pathlib import Path

import chorus
from chorus.cluster.doctor.facts import Facts
from chorus.cluster.doctor.finding import Check, Finding
from chorus.cluster.doctor.probe import Probe
from chorus.platform import system as systems
from chorus.platform.accelerator import device, dtype
from chorus.platform.accelerator.mlx_import import remedy
from chorus.platform.cpu import products
from chorus.platform.cpu.blas import INSTALL_FIX
from chorus.platform.install import install_hint
from chorus.transport import catalog

FIRST_PYTHON = (3, 11)
FIRST_MACOS = (14,)
"""MLX's wheels are for this version and newer ones."""


def system(facts: Facts) -> Finding:
    name = "system"
    if facts.system not in (systems.MAC, systems.LINUX):
        fix = "use Linux or macOS; on Windows, WSL 2 is a Linux"
        return Finding(name, f"{facts.description}, which MLX does not run on", "error", fix)
    if facts.system == systems.MAC and facts.macos and facts.macos < FIRST_MACOS:
        return Finding(name, facts.description, "error", "update this Mac to macOS 14 or newer: MLX needs it")
    return Finding(name, facts.description)


def chip(facts: Facts) -> Finding:
    name = "chip"
    if facts.translated:
        fix = "install a Python for Apple silicon (arm64), e.g. from python.org or Homebrew in /opt/homebrew"
        return Finding(name, f"{facts.chip}, but this Python is one for Intel, translated by Rosetta", "error", fix)
    if facts.system == systems.MAC and facts.machine != "arm64":
        return Finding(name, f"{facts.chip}, an Intel Mac", "error", "MLX needs Apple silicon: use another machine")
    return Finding(name, facts.chip)


def python(facts: Facts) -> Finding:
    text = ".".join(str(part) for part in facts.python)
    if facts.python < FIRST_PYTHON:
        return Finding("python", text, "error", "install Python 3.11 or newer")
    return Finding("python", text)


def own(facts: Facts) -> Finding:
    if facts.installed["chorus"] is None:
        value = f"{chorus.__version__}, not installed: run from {Path(chorus.__file__).parent}"
        return Finding("chorus", value, "warn", install_hint())
    return Finding("chorus", chorus.__version__)


def mlx_version(facts: Facts) -> Finding:
    return _package("mlx", facts)


def mlx_lm_version(facts: Facts) -> Finding:
    return _package("mlx-lm", facts)


def _package(name: str, facts: Facts) -> Finding:
    installed, pinned = facts.installed[name], facts.pins.get(name)
    fix = f"pip install {name}=={pinned}" if pinned else f"pip install {name}"
    if installed is None:
        return Finding(name, "not installed", "error", fix)
    if pinned and installed != pinned:
        return Finding(name, f"{installed}, but Chorus {chorus.__version__} needs {pinned}", "error", fix)
    return Finding(name, f"{installed} (as pinned)" if pinned else installed)


def platform_wheel(facts: Facts) -> Finding:
    """The wheels own the same files, so the one installed last has overwritten the other."""
    here = {name: version for name, version in facts.wheels.items() if version}
    shown = " and ".join(f"{name} {version}" for name, version in here.items())
    if facts.system == systems.MAC:
        return Finding("mlx wheel", "Metal, part of mlx")
    if not here:
        return Finding("mlx wheel", "none for this platform", "error", install_hint())
    if len(here) > 1:
        fix = f"pip uninstall {' '.join(here)}, then {install_hint()}"
        return Finding("mlx wheel", f"{shown} overwrite each other", "warn", fix)
    return Finding("mlx wheel", shown)


def backend(facts: Facts) -> Finding:
    """Where everything runs on the CPU beside a GPU that could do it, that is the first thing to mend."""
    name, cuda_wheel = "backend", any(facts.wheels.get(each) for each in device.CUDA_PACKAGES)
    if facts.backend != "cpu" or facts.system == systems.MAC:
        return Finding(name, facts.backend)
    hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if cuda_wheel and hidden is not None and device.hides_gpus(facts.environment):
        return Finding(name, f"cpu: the GPU is hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "warn", "unset it")
    if cuda_wheel:
        fix = (
            "install the NVIDIA driver (nvidia-smi shows it), in a container docker run --gpus all, or use the [cpu] "
            "wheel"
        )
        return Finding(name, "cpu: the wheel is for NVIDIA GPUs and none can be seen", "warn", fix)
    if facts.gpu_here:
        fix = f"pip uninstall mlx-cpu, then install the [cuda13] wheel instead; {install_hint()}"
        return Finding(name, "cpu, although this machine has an NVIDIA GPU", "warn", fix)
    return Finding(name, "cpu")


def mlx_works(facts: Facts) -> Finding:
    if isinstance(facts.probe, str):
        return Finding("mlx works", facts.probe, "error", remedy(facts.probe))
    return Finding("mlx works", f"on {facts.probe.device}")


def number_type(facts: Facts) -> Finding:
    value = dtype.rule(facts.backend, kernels=facts.kernels)
    if facts.backend == "cpu" and not facts.kernels:
        return Finding("number type", value, "warn", products.REMEDY)
    return Finding("number type", value)


def blas(facts: Facts) -> list[Finding]:
    if not isinstance(facts.probe, Probe):
        return []
    probe = facts.probe
    value = " ".join(part for part in (probe.blas, probe.blas_path and f"({probe.blas_path})") if part)
    if probe.blas == "bundled":
        return [Finding("BLAS", f"{value}: {probe.blas_detail}", "warn", INSTALL_FIX)]
    return [Finding("BLAS", f"{value}, {probe.threads} threads for a single rank")]


def speed(facts: Facts) -> list[Finding]:
    """Threads of a BLAS wait for each other: where another program holds a core, many are slower than one."""
    if not isinstance(facts.probe, Probe):
        return []
    probe, name = facts.probe, "matrix product"
    value = f"{probe.gflops} GFLOP/s in float32"
    if probe.threads == 1 or probe.blas == "MLX's own":
        return [Finding(name, value)]
    value = f"{value} with {probe.threads} threads, {probe.gflops_one_thread} with one"
    if probe.gflops < 0.8 * probe.gflops_one_thread:
        fix = "other programs keep the cores busy: end them, or give each rank fewer threads"
        return [Finding(name, value, "warn", fix)]
    return [Finding(name, value)]


def collectives(facts: Facts) -> list[Finding]:
    """What MLX can form groups over; with which library, for those that need one of MPI."""
    if not isinstance(facts.probe, Probe):
        return []
    names = facts.probe.collectives
    shown = [f"{name} ({facts.mpi})" if catalog.get(name).launcher else name for name in names]
    value = ", ".join(shown) or "none"
    for row in catalog.rows():
        if row.missed_on == facts.system and row.name not in names:
            return [Finding("collectives", f"{value}; no {row.name}", "warn", row.install)]
    return [Finding("collectives", value)]


CHECKS: tuple[Check[Facts], ...] = (
    Check("system", "a system, or a macOS, that MLX does not run on", system),
    Check("chip", "an Intel Mac; a Python for Intel that Rosetta translates", chip),
    Check("python", "a Python older than 3.11", python),
    Check("chorus", "a Chorus that runs from a folder and was never installed", own),
    Check("mlx", "no MLX, or another version than Chorus needs", mlx_version),
    Check("mlx-lm", "no mlx-lm, or another version than Chorus needs", mlx_lm_version),
    Check("mlx wheel", "no MLX for this platform, or two that overwrite each other", platform_wheel),
    Check(
        "backend", "everything on the CPU beside a GPU: hidden, without a driver, or with the wheel for CPUs", backend
    ),
    Check("mlx works", "an MLX that cannot be imported, crashes or hangs", mlx_works),
    Check("number type", "a CPU without the kernels for packed weights", number_type),
    Check("BLAS", "the slow BLAS that MLX's wheel brings", blas),
    Check("matrix product", "cores that other programs keep busy: many threads slower than one", speed),
    Check("collectives", "no library of MPI", collectives),
)
