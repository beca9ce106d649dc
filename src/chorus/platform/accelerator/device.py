"""Which MLX device would be used here, told without importing MLX."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from chorus.platform import system

Backend = Literal["metal", "cuda", "cpu"]

CUDA_PACKAGES = ("mlx-cuda-13", "mlx-cuda-12")
# The driver's doors: bare metal and containers have the first, WSL the second.
_GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def backend() -> Backend:
    return choose_backend(
        system.name(),
        system.machine(),
        any(installed(package) for package in CUDA_PACKAGES),
        has_gpu(),
        os.environ,
    )


def has_gpu() -> bool:
    """Whether the driver of an NVIDIA GPU is there, whatever wheel is installed."""
    return any(path.exists() for path in _GPU_FILES)


def prefill_chunk() -> int:
    """How many prompt tokens make one forward where nobody has measured what they take."""
    return 128 if backend() == "cpu" else 512


def most_prefill_chunk() -> int:
    """Up to how many pay in one forward. A CPU gains little beyond 128 (4 % from there to 512, measured), an H200 half
    as much again from 512 to 4,096.
    """
    return 128 if backend() == "cpu" else 4096


def choose_backend(name: str, machine: str, cuda_wheel: bool, gpu: bool, environment: Mapping[str, str]) -> Backend:
    if name == system.MAC:
        return "metal" if machine == "arm64" else "cpu"
    return "cuda" if cuda_wheel and gpu and not hides_gpus(environment) else "cpu"


def hides_gpus(environment: Mapping[str, str]) -> bool:
    return environment.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")


def installed(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
