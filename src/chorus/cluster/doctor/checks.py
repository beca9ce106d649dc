"""What `chorus doctor` looks at: one function per finding, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

import chorus
from chorus.cluster.doctor.hub import Asked
from chorus.cluster.doctor.probe import Probe
from chorus.platform import cgroup, cores, device, dtype, memory, mpi, products, system
from chorus.platform.blas import INSTALL_FIX
from chorus.platform.chip import chip
from chorus.platform.install import install_hint
from chorus.platform.mlx_import import remedy
from chorus.platform.paths import models_dir
from chorus.transport import catalog

Status = Literal["ok", "warn", "missing"]

DISTRIBUTION = "mlx-chorus"
_GIB = 2**30
_LOW_DISK = 2 * _GIB
_LOW_MEMORY = _GIB
_FEW_FILES = 1024


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    status: Status = "ok"  # "missing": Chorus cannot run without it
    fix: str = ""


def examine(probe: Probe | str, asked: Asked | None) -> list[Finding]:
    """Everything about this machine, in reading order. `probe` is what MLX said, or why it said nothing; `asked` what
    Hugging Face was, unless somebody switched that off.
    """
    pins = pinned_versions(requirements())
    backend = device.backend()
    wheels = {name: device.installed(name) for name in ("mlx-cpu", *device.CUDA_PACKAGES)}
    found = [
        Finding("system", system.description()),
        Finding("chip", chip()),
        python(sys.version_info[:3]),
        own(device.installed(DISTRIBUTION)),
        package("mlx", device.installed("mlx"), pins.get("mlx")),
        package("mlx-lm", device.installed("mlx-lm"), pins.get("mlx-lm")),
        platform_wheel(system.name(), wheels),
        *gpu(backend, any(wheels[name] for name in device.CUDA_PACKAGES), os.environ),
        mlx(probe),
        Finding("backend", backend),
        Finding("number type", dtype.rule(backend, kernels=products.installed())),
        processor_cores(cores.usable_cores(), psutil.cpu_count(logical=False), os.cpu_count()),
        main_memory(memory.total_memory(), memory.available_memory()),
        memory_limit(cgroup.memory_limit(Path("/"))),
        disk(models_dir()),
        hugging_face(switched_off(os.environ), asked),
        open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
    ]
    if isinstance(probe, Probe):
        found += [blas(probe), speed(probe), collectives(probe, mpi.library(), system.name())]
        if backend != "cpu":
            found.append(device_memory(probe, backend))
    if backend == "metal":
        found.append(wired_limit(system.sysctl("iogpu.wired_limit_mb")))
    return found


def can_run(findings: list[Finding]) -> bool:
    return all(finding.status != "missing" for finding in findings)


def requirements() -> list[str]:
    """Our own metadata; none where Chorus runs from a folder that was never installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def own(installed: str | None) -> Finding:
    if installed is None:
        value = f"{chorus.__version__}, not installed: run from {Path(chorus.__file__).parent}"
        return Finding("chorus", value, "warn", install_hint())
    return Finding("chorus", chorus.__version__)


def pinned_versions(requirements: list[str]) -> dict[str, str]:
    """The exact versions in our own metadata, so that they are written down once."""
    always = (line for line in requirements if ";" not in line)
    pairs = (line.partition("==") for line in always if "==" in line)
    return {name.strip(): version.strip() for name, _, version in pairs}


def python(version: tuple[int, ...]) -> Finding:
    text = ".".join(str(part) for part in version)
    if version < (3, 11):
        return Finding("python", text, "missing", "install Python 3.11 or newer")
    return Finding("python", text)


def package(name: str, installed: str | None, pinned: str | None) -> Finding:
    fix = f"pip install {name}=={pinned}" if pinned else f"pip install {name}"
    if installed is None:
        return Finding(name, "not installed", "missing", fix)
    if pinned and installed != pinned:
        return Finding(name, f"{installed}, but Chorus {chorus.__version__} needs {pinned}", "missing", fix)
    return Finding(name, f"{installed} (as pinned)" if pinned else installed)


def platform_wheel(system_name: str, wheels: Mapping[str, str | None]) -> Finding:
    """The wheels own the same files, so the one installed last has overwritten the other."""
    here = [f"{name} {version}" for name, version in wheels.items() if version]
    if system_name == system.MAC:
        return Finding("mlx wheel", "Metal, part of mlx")
    if not here:
        return Finding("mlx wheel", "none for this platform", "missing", install_hint())
    if len(here) > 1:
        unwanted = " ".join(name for name, version in wheels.items() if version)
        fix = f"pip uninstall {unwanted}, then {install_hint()}"
        return Finding("mlx wheel", f"{' and '.join(here)} overwrite each other", "warn", fix)
    return Finding("mlx wheel", here[0])


def gpu(backend: device.Backend, cuda_wheel: bool, environment: Mapping[str, str]) -> list[Finding]:
    """A line where the wheel for NVIDIA GPUs is installed and none can be seen: everything runs on the CPU then."""
    if not cuda_wheel or backend == "cuda":
        return []
    hidden = environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and device.hides_gpus(environment):
        return [Finding("GPU", f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}: the CPU is used", "warn", "unset it")]
    fix = (
        "install the NVIDIA driver (nvidia-smi shows it), in a container docker run --gpus all, or use the [cpu] wheel"
    )
    return [Finding("GPU", "the wheel is for NVIDIA GPUs and none can be seen: the CPU is used", "warn", fix)]


def mlx(probe: Probe | str) -> Finding:
    if isinstance(probe, str):
        return Finding("mlx works", probe, "missing", remedy(probe))
    return Finding("mlx works", f"on {probe.device}")


def blas(probe: Probe) -> Finding:
    value = " ".join(part for part in (probe.blas, probe.blas_path and f"({probe.blas_path})") if part)
    if probe.blas == "bundled":
        return Finding("BLAS", f"{value}: {probe.blas_detail}", "warn", INSTALL_FIX)
    return Finding("BLAS", f"{value}, {probe.threads} threads for a single rank")


def speed(probe: Probe) -> Finding:
    """Threads of a BLAS wait for each other: where another program holds a core, many are slower than one."""
    value = f"{probe.gflops} GFLOP/s in float32"
    if probe.threads == 1 or probe.blas == "MLX's own":
        return Finding("matrix product", value)
    value = f"{value} with {probe.threads} threads, {probe.gflops_one_thread} with one"
    if probe.gflops < 0.8 * probe.gflops_one_thread:
        fix = "other programs keep the cores busy: end them, or give each rank fewer threads"
        return Finding("matrix product", value, "warn", fix)
    return Finding("matrix product", value)


def collectives(probe: Probe, mpi_library: Path | None, system_name: str) -> Finding:
    """What MLX can form groups over; `mpi_library` is what those use that need a library of MPI."""
    shown = [f"{name} ({mpi_library})" if catalog.get(name).launcher else name for name in probe.collectives]
    value = ", ".join(shown) or "none"
    for row in catalog.rows():
        if row.missed_on == system_name and row.name not in probe.collectives:
            return Finding("collectives", f"{value}; no {row.name}", "warn", row.install)
    return Finding("collectives", value)


def processor_cores(usable: int, physical: int | None, logical: int | None) -> Finding:
    value = f"{usable} to use ({physical or 'unknown'} physical, {logical or 'unknown'} logical)"
    return Finding("cores", value)


def main_memory(total: int, available: int) -> Finding:
    value = f"{size(available)} free of {size(total)}"
    if available < _LOW_MEMORY:
        return Finding("memory", value, "warn", "end other programs or choose a small model")
    return Finding("memory", value)


def memory_limit(limit: cgroup.MemoryLimit | None) -> Finding:
    if limit is None:
        return Finding("container limit", "none")
    return Finding("container limit", f"{size(limit.limit)}, {size(limit.used)} of it used")


def device_memory(probe: Probe, backend: device.Backend) -> Finding:
    name = "Metal working set" if backend == "metal" else "GPU memory"
    return Finding(name, f"{size(probe.device_available)} free of {size(probe.device_total)}")


def wired_limit(megabytes: str | None) -> Finding:
    """macOS keeps this many megabytes at most for the GPU; 0 is its own choice, about three quarters."""
    if megabytes is None or not megabytes.isdigit():
        return Finding("GPU wired limit", "unknown", "warn", "needs macOS 15 or newer")
    if int(megabytes) == 0:
        return Finding("GPU wired limit", "macOS default")
    return Finding("GPU wired limit", f"{int(megabytes)} MB")


def disk(folder: Path) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    value = f"{size(free)} free at {folder}"
    if free < _LOW_DISK:
        return Finding("model cache", value, "warn", "free some space, or set CHORUS_CACHE to another disk")
    return Finding("model cache", value)


def switched_off(environment: Mapping[str, str]) -> list[str]:
    """The variables by which somebody keeps Hugging Face from being asked."""
    return [
        name
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if environment.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE")
    ]


def hugging_face(off_by: Sequence[str], asked: Asked | None) -> Finding:
    """Whether models can be downloaded; without, everything else still works."""
    name, rest = "Hugging Face", "models that are here already, folders and .gguf files still work"
    if off_by or asked is None:
        fix = f"unset {' '.join(off_by)} to download from Hugging Face"
        return Finding(name, f"offline, as {' and '.join(off_by)} says: {rest}", "ok", fix)
    if obstacle := asked.obstacle():
        fix = "check the network and its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror"
        return Finding(name, f"offline, {asked.url} cannot be reached ({obstacle}): {rest}", "warn", fix)
    return Finding(name, f"online, {asked.url} answers")


def open_files(soft: int, hard: int) -> Finding:
    value = f"{_limit(soft)}, at most {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:  # the other limit we raise ourselves
        return Finding("open files", value, "warn", "ulimit -n 4096, or ask whoever runs this machine for more")
    return Finding("open files", value)


def size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else f"{value:,}"
