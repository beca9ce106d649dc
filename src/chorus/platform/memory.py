"""How much memory there is for a model: the machine's, a container's share of it, the accelerator's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import psutil

from chorus.platform import cgroup


@dataclass(frozen=True)
class DeviceMemory:
    total: int
    available: int


def total_memory() -> int:
    return within_limit(psutil.virtual_memory().total, limit_of(cgroup.memory_limit(Path("/"))))


def available_memory() -> int:
    """What this process could still take without swapping and without its container being killed."""
    return within_limit(psutil.virtual_memory().available, left_of(cgroup.memory_limit(Path("/"))))


def resident_memory() -> int:
    return int(psutil.Process().memory_info().rss)


def within_limit(machine: int, limit: int | None) -> int:
    return machine if limit is None else min(machine, limit)


def limit_of(group: cgroup.MemoryLimit | None) -> int | None:
    return group.limit if group else None


def left_of(group: cgroup.MemoryLimit | None) -> int | None:
    return max(0, group.limit - group.used) if group else None


def device_memory(mx: ModuleType) -> DeviceMemory:
    """Where arrays live, as mlx.core (given, so that this module never imports it) sees it."""
    info = mx.device_info()
    if mx.metal.is_available():
        # The GPU shares the machine's memory; above this size macOS starts to page the model out.
        working_set = int(info["max_recommended_working_set_size"])
        return DeviceMemory(working_set, max(0, min(working_set - int(mx.get_active_memory()), available_memory())))
    if "free_memory" in info:
        return DeviceMemory(int(info["total_memory"]), int(info["free_memory"]))
    return DeviceMemory(total_memory(), available_memory())
