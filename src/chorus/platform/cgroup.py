"""The limits a container or a service manager puts on this process (cgroup v1 and v2).

Every function takes the root folder to read below: "/" here, a made-up tree in tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Version 1 says "no limit" with a number near 2**63; no machine has this much.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    limit: int
    used: int  # without the page cache, which the kernel gives back on demand


def memory_limit(root: Path) -> MemoryLimit | None:
    """The level that leaves least, or None where nothing limits us. A parent's limit binds its children too."""
    limits = [*_memory_limits_v2(root), *_memory_limits_v1(root)]
    return min(limits, key=lambda level: level.limit - level.used, default=None)


def cpu_quota(root: Path) -> float | None:
    """Cores' worth of time per period, or None where it is not limited."""
    quotas: list[float] = []
    for folder in _levels(root, "cgroup2", None):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    for folder in _levels(root, "cgroup", "cpu"):
        allowed, per = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if allowed and per and allowed > 0:
            quotas.append(allowed / per)
    return min(quotas, default=None)


def memory_kills_file(root: Path) -> Path | None:
    """Where the kernel counts the processes that it has ended for their memory: of our own group, or of the whole
    machine where groups are not counted.
    """
    files = [folder / "memory.events" for folder in _levels(root, "cgroup2", None)]
    files += [folder / "memory.oom_control" for folder in _levels(root, "cgroup", "memory")]
    return next((file for file in (*files, root / "proc/vmstat") if memory_kills(file) is not None), None)


def memory_kills(file: Path) -> int | None:
    for line in _text(file).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdigit():
            return int(count)
    return None


def _memory_limits_v2(root: Path) -> Iterator[MemoryLimit]:
    for folder in _levels(root, "cgroup2", None):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            yield MemoryLimit(limit, max(0, used - _page_cache(folder, "active_file", "inactive_file")))


def _memory_limits_v1(root: Path) -> Iterator[MemoryLimit]:
    for folder in _levels(root, "cgroup", "memory"):
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            cached = _page_cache(folder, "total_active_file", "total_inactive_file")
            yield MemoryLimit(limit, max(0, used - cached))


def _page_cache(folder: Path, *names: str) -> int:
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)


def _levels(root: Path, filesystem: str, controller: str | None) -> Iterator[Path]:
    """Our own group's folder and each of its parents', up to the mount point."""
    mount = _mount_point(root, filesystem, controller)
    if mount is None:
        return
    folder = mount / _own_group(root, controller).lstrip("/")
    if not folder.is_dir():
        # Inside a container the listed path can be the host's; what is mounted is then our own group.
        folder = mount
    while True:
        yield folder
        if folder == mount:
            return
        folder = folder.parent


def _mount_point(root: Path, filesystem: str, controller: str | None) -> Path | None:
    for line in _text(root / "proc/self/mounts").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[2] != filesystem:
            continue
        if controller is None or controller in fields[3].split(","):
            return root / fields[1].lstrip("/")
    return None


def _own_group(root: Path, controller: str | None) -> str:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if (controller is None and controllers == "") or (controller and controller in controllers.split(",")):
            return group
    return "/"


def _text(path: Path) -> str:
    """Empty where the file is not there: which files exist is how the kernel says what applies."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None
