"""How much memory there is for a model: the machine's, a container's share of it, the accelerator's own; to a process
for which a part was booked (ledger.py), that part and no more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import psutil

from chorus.platform import cgroup, system
from chorus.platform.accelerator.device import Backend
from chorus.platform.memory import mac as mac_memory
from chorus.platform.memory import metal

_BOOKED_VARIABLE = "CHORUS_BOOKED_BYTES"


def booked_environment(amount: int) -> dict[str, str]:
    """For a process that we start and have booked so many bytes for: it decides by these, not by what it finds free."""
    return {_BOOKED_VARIABLE: str(amount)}


def booked_bytes() -> int | None:
    """What this process may take in all, itself too; None where nobody has booked anything for it."""
    told = os.environ.get(_BOOKED_VARIABLE)
    return int(told) if told else None


@dataclass(frozen=True)
class DeviceMemory:
    total: int
    available: int


def total_memory() -> int:
    return within_limit(psutil.virtual_memory().total, limit_of(cgroup.memory_limit(Path("/"))))


def available_memory() -> int:
    """What this process could still take without swapping and without its container being killed."""
    if system.is_mac():
        return mac_memory.free_memory(mac_memory.read_figures())
    return within_limit(psutil.virtual_memory().available, left_of(cgroup.memory_limit(Path("/"))))


def swap_used() -> int:
    """Bytes that lie on disk since there was no room for them; 0 where a container hides that."""
    return psutil.swap_memory().used if system.is_mac() or Path("/proc/swaps").exists() else 0


def resident_memory(mx: ModuleType | None = None) -> int:
    """What this process holds; with mlx.core given, also what it holds through Metal."""
    resident = int(psutil.Process().memory_info().rss)
    return max(resident, metal.held_memory(mx)) if mx else resident


def within_limit(machine: int, limit: int | None) -> int:
    return machine if limit is None else min(machine, limit)


def limit_of(group: cgroup.MemoryLimit | None) -> int | None:
    return group.limit if group else None


def left_of(group: cgroup.MemoryLimit | None) -> int | None:
    return max(0, group.limit - group.used) if group else None


def device_memory(mx: ModuleType) -> DeviceMemory:
    """Where arrays live, as mlx.core (given, so that this module never imports it) sees it: this process's part."""
    booked = booked_bytes()
    if booked is None:
        return _whole_device(mx)
    held = int(mx.get_active_memory()) if "free_memory" in mx.device_info() else resident_memory(mx)
    return DeviceMemory(min(_whole_device(mx).total, booked), max(0, booked - held))


def _whole_device(mx: ModuleType) -> DeviceMemory:
    info = mx.device_info()
    if mx.metal.is_available():
        # The GPU shares the machine's memory; above its working set macOS starts to page the model out.
        mac = mac_memory.read_figures()
        working_set = mac_memory.working_set(int(info["max_recommended_working_set_size"]), mac.raised)
        return DeviceMemory(working_set, max(0, min(working_set - int(mx.get_active_memory()), available_memory())))
    if "free_memory" in info:
        return DeviceMemory(int(info["total_memory"]), int(info["free_memory"]))
    return DeviceMemory(total_memory(), available_memory())


def mac_budget(mx: ModuleType, fraction: float, ranks: int) -> mac_memory.Budget | None:
    """What a rank that is about to load may take of a Mac, one of several that run there; None without Metal."""
    if not mx.metal.is_available():
        return None
    working_set = device_memory(mx).total
    if booked := booked_bytes():
        return mac_memory.Budget(min(booked, working_set), booked, working_set)
    return mac_memory.budget(available_memory(), working_set, fraction, ranks)


def left_for_cache(mx: ModuleType, loaded_within: mac_memory.Budget | None) -> int:
    """What a rank may still take once it has loaded: of its Mac's budget, or of what its device has free.

    On a Mac what is free says little then: the weights just loaded are counted in one column or another.
    """
    if loaded_within is None:
        return device_memory(mx).available
    return max(0, loaded_within.room - int(mx.get_active_memory()))


def cache_share(backend: str, left: int, fraction: float) -> int:
    """How much of what a rank has left its cache may take. A Mac's budget has the fraction in it."""
    return left if backend == "metal" else int(left * fraction)


def bound_freed_buffers(mx: ModuleType) -> None:
    """On a GPU with memory of its own: by itself MLX keeps freed buffers until nearly all of it is taken, and what it
    keeps no cache can count on.
    """
    info = mx.device_info()
    if "free_memory" in info:
        mx.set_cache_limit(mac_memory.freed_buffers_limit(int(info["total_memory"])))


def own_device_memory(mx: ModuleType) -> int:
    """What arrays may take in all, as long as nobody has raised a Mac's limit: this may be remembered."""
    if mx.metal.is_available() and (mac := mac_memory.read_figures()).raised:
        return mac_memory.stock_working_set(mac.total)
    return device_memory(mx).total


def working_set(backend: Backend, own: int) -> int:
    """What arrays may take in all now, where the device itself says `own`."""
    return mac_memory.working_set(own, mac_memory.read_figures().raised) if backend == "metal" else own


def usable_memory(backend: Backend, free: int, working_set: int, fraction: float) -> int:
    """What ranks may take of a machine, before they load."""
    if backend == "metal":
        return mac_memory.budget(free, working_set, fraction).room
    return int(min(working_set, free) * fraction)


def usable_unmeasured(backend: Backend, fraction: float) -> int:
    """The same of this machine, where nobody has asked its device yet."""
    free = available_memory()
    if backend != "metal":
        return int(free * fraction)
    return usable_memory(backend, free, working_set(backend, mac_memory.stock_working_set(total_memory())), fraction)
