"""What the system says about its processor and GPU."""

from __future__ import annotations

import re
from pathlib import Path

from chorus.platform import system


def chip() -> str:
    """The processor's name, or at least its kind."""
    if system.is_mac():
        return system.sysctl("machdep.cpu.brand_string") or system.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, system.machine())


def gpu_cores() -> int | None:
    """Cores of the GPU; None where the system does not say, and only macOS does."""
    if not system.is_mac():
        return None
    told = system.told("ioreg", "-rc", "AGXAccelerator", "-d", "1")
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', told)
    return int(found[1]) if found else None
