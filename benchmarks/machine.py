"""What the machine is and how busy it was, so that a reader can tell a result from noise."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

import psutil

# A minute of load above this before we start means that somebody else is using the cores.
BUSY_LOAD_PER_CORE = 0.25
_PACKAGES = ("mlx-chorus", "mlx", "mlx-lm", "onnxruntime", "grpcio", "httpx")


@dataclass(frozen=True)
class Facts:
    system: str
    processor: str
    cores: int
    memory_bytes: int
    python: str
    versions: dict[str, str]


def facts() -> Facts:
    return Facts(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        versions={name: _version(name) for name in _PACKAGES},
    )


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def is_busy(load: float, cores: int) -> bool:
    return load > BUSY_LOAD_PER_CORE * cores


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def cpu_of(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """CPU seconds by process id; one that has just ended is left out."""
    seconds: dict[int, float] = {}
    for process in processes:
        try:
            seconds[process.pid] = cpu_seconds(process)
        except psutil.NoSuchProcess:
            continue
    return seconds


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process ever held, as Linux keeps it."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return parse_peak(status.read())


def parse_peak(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("the process status has no VmHWM line: a peak can be read on Linux only")


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"  # run from its sources


def own_bytes(processes: Iterable[psutil.Process]) -> int:
    """What all of them have in memory; pages that they share count once (Linux)."""
    return sum(process.memory_full_info().pss for process in processes)
