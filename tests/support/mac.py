"""A Mac to play: its kernel's word and its tools come from stubs, and MLX says that there is Metal."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import psutil
import pytest

GIB = 1 << 30
PAGE = 16384
WORKING_SET = "max_recommended_working_set_size"


def play_mac(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    total: int,
    sysctl: Mapping[str, int | str] | None = None,
    vm_stat: str = "",
    psutil_available: int = GIB,
) -> None:
    """What is asked of this system from now on is answered as a Mac of Apple's own chips does."""
    said = {"hw.memsize": total, **(sysctl or {})}
    cases = "".join(f"{key}) echo '{value}';;\n" for key, value in said.items())
    _tool(folder / "sysctl", f'case "$2" in\n{cases}*) echo "sysctl: unknown oid \'$2\'" >&2; exit 1;;\nesac\n')
    _tool(folder / "vm_stat", f"cat <<'END'\n{vm_stat}\nEND\n" if vm_stat else "exit 1\n")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    seen = SimpleNamespace(total=total, available=psutil_available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: seen)


def vm_stat_text(**pages: int) -> str:
    """As `vm_stat` prints it; names with underscores for spaces."""
    lines = [f"{name.replace('_', ' ')}: {count:>40}." for name, count in pages.items()]
    return "\n".join([f"Mach Virtual Memory Statistics: (page size of {PAGE} bytes)", *lines])


@dataclass
class FakeMetal:
    """The few calls of mlx.core that know of Metal, recorded."""

    working_set: int
    active: int = 0
    cached: int = 0
    wired_limits: list[int] = field(default_factory=list)
    cache_limits: list[int] = field(default_factory=list)
    cleared: int = 0

    def __post_init__(self) -> None:
        self.metal = SimpleNamespace(is_available=lambda: True)

    def device_info(self) -> dict[str, int]:
        return {WORKING_SET: self.working_set}

    def get_active_memory(self) -> int:
        return self.active

    def get_cache_memory(self) -> int:
        return self.cached

    def set_wired_limit(self, limit: int) -> int:
        assert limit <= self.working_set, "Setting a wired limit larger than the maximum working set size"
        self.wired_limits.append(limit)
        return 0

    def set_cache_limit(self, limit: int) -> int:
        self.cache_limits.append(limit)
        return 0

    def clear_cache(self) -> None:
        self.cleared += 1
        self.cached = 0

    def play(self, monkeypatch: pytest.MonkeyPatch) -> FakeMetal:
        """The real mlx.core answers as this one; its arrays stay on the CPU."""
        monkeypatch.setattr(mx.metal, "is_available", self.metal.is_available)
        for name in ("device_info", "get_active_memory", "get_cache_memory", "set_wired_limit", "set_cache_limit"):
            monkeypatch.setattr(mx, name, getattr(self, name))
        monkeypatch.setattr(mx, "clear_cache", self.clear_cache)
        return self


def _tool(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
