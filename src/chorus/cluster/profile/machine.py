"""What this machine offers to a cluster: measured once in a few seconds, then remembered."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import chorus
from chorus.cluster.profile.rates import Rates
from chorus.errors import ChorusError
from chorus.planning.costs import Machine
from chorus.platform.accelerator import device
from chorus.platform.accelerator.chip import chip, gpu_cores
from chorus.platform.accelerator.device import Backend
from chorus.platform.cpu import cores, products
from chorus.platform.memory import amounts
from chorus.platform.storage.files import write_if_possible
from chorus.platform.storage.paths import cache_dir, models_dir

log = logging.getLogger("chorus.profile")
T = TypeVar("T")

PROFILE_FILE = "profile.json"
MEASURE_SECONDS = 180.0


class ProfileError(ChorusError):
    """This machine could not be measured: why, and what to do."""


@dataclass(frozen=True)
class Profile:
    chip: str
    backend: Backend
    cpu_cores: int
    gpu_cores: int | None
    memory_total: int
    memory_available: int
    disk_free: int
    threads: int
    """Threads of one rank; the rates below are for so many."""
    rates: Rates
    working_set: int
    """What arrays may take in all: of a Mac's GPU, as its owner has set it by now."""

    def usable_memory(self, fraction: float) -> int:
        """Bytes that a rank may take: a fraction of what is there, and no more than is free now."""
        return amounts.usable_memory(self.backend, self.memory_available, self.working_set, fraction)


def profile(threads: int | None = None, *, refresh: bool = False) -> Profile:
    """This machine with so many threads per rank (all its cores). Memory and disk are read anew each time."""
    threads = threads or cores.usable_cores()
    return _described(threads, _rates(threads, refresh))


def fresh_profile(threads: int) -> Profile:
    """Measured now and not remembered: for whoever compares it with something else that is measured now."""
    return _described(threads, _measured(threads))


def known_profile(threads: int) -> Profile | None:
    """As `profile`, where this machine was measured before; measures nothing."""
    known = _remembered(cache_dir() / PROFILE_FILE).get(_key(threads))
    return _described(threads, _parsed(known)) if known else None


def usable_here(fraction: float) -> int:
    """What models may take of this machine, as far as is known without measuring anything."""
    known = known_profile(cores.threads_per_rank(cores.usable_cores(), 1))
    return known.usable_memory(fraction) if known else amounts.usable_unmeasured(device.backend(), fraction)


def _described(threads: int, rates: Rates) -> Profile:
    models = models_dir()
    existing = next(folder for folder in (models, *models.parents) if folder.exists())
    return Profile(
        chip=chip(),
        backend=device.backend(),
        cpu_cores=cores.usable_cores(),
        gpu_cores=gpu_cores(),
        memory_total=amounts.total_memory(),
        memory_available=amounts.available_memory(),
        disk_free=shutil.disk_usage(existing).free,
        threads=threads,
        rates=rates,
        working_set=amounts.working_set(device.backend(), rates.device_memory),
    )


def node_of(found: Profile, name: str, memory_fraction: float, ranks: int = 1) -> Machine:
    """The machine, or one of several equal ranks on it, as the planner sees it."""
    rates = found.rates
    return Machine(
        name=name,
        backend=found.backend,
        memory=found.usable_memory(memory_fraction) // ranks,
        flops=rates.flops,
        bandwidth=rates.bandwidth,
        packed_flops=rates.packed_flops,
        packed_bandwidth=rates.packed_bandwidth,
        layer_seconds=rates.layer_seconds,
        kernel_flops=rates.kernel_flops,
        kernel_bandwidth=rates.kernel_bandwidth,
        kernel_layer_seconds=rates.kernel_layer_seconds,
    )


def _rates(threads: int, refresh: bool) -> Rates:
    file, key = cache_dir() / PROFILE_FILE, _key(threads)
    known = _remembered(file)
    if not refresh and key in known:
        return _parsed(known[key])
    rates = _measured(threads)
    _remember(file, {**known, key: asdict(rates)})
    return rates


def _key(threads: int) -> str:
    """Names whatever could change the figures."""
    packages = ("mlx", "mlx-cpu", *device.CUDA_PACKAGES, *products.PACKAGES)
    versions = [f"{name} {device.installed(name)}" for name in packages]
    parts = (f"chorus {chorus.__version__}", *versions, chip(), device.backend(), f"{threads} threads")
    return "; ".join([*parts, os.environ.get("CHORUS_BLAS", "")])


def _measured(threads: int) -> Rates:
    return replace(_told("chorus.cluster.profile.kernels", threads, _parsed), **_kernel_rates(threads))


def _kernel_rates(threads: int) -> dict[str, Any]:
    """Of packed weights on a CPU; nothing where they cannot be multiplied as they are."""
    if device.backend() != "cpu" or not products.installed():
        return {}
    names = ("flops", "bandwidth", "layer_seconds")
    try:
        return _told(
            "chorus.rank.products.rates", threads, lambda told: {f"kernel_{name}": float(told[name]) for name in names}
        )
    except ProfileError as error:
        log.warning("packed products cannot be measured, so plans count with float32 here: %s", error)
        return {}


def _told(module: str, threads: int, read: Callable[[Any], T]) -> T:
    """What a process of its own has measured."""
    command = [sys.executable, "-m", module, "--threads", str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ProfileError(f"measuring took more than {MEASURE_SECONDS:.0f} s; see: chorus doctor") from None
    try:
        # Only the last line is ours: libraries may print above it.
        return read(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError, TypeError, KeyError):
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise ProfileError(f"this machine cannot be measured: {why}; see: chorus doctor") from None


def _parsed(data: dict[str, Any]) -> Rates:
    return Rates(**{**data, "collectives": tuple(data["collectives"])})


def _remembered(file: Path) -> dict[str, Any]:
    """A damaged file is as good as none: everything in it can be measured again."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return {key: asdict(_parsed(value)) for key, value in known.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _remember(file: Path, known: dict[str, Any]) -> None:
    write_if_possible(file, json.dumps(known, indent=2).encode(), "this machine is measured again at the next start")
