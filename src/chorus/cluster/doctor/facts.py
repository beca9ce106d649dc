"""What there is to know of this machine before anybody judges it, gathered in one place."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from chorus.cluster.agent.model_files import copies_dir
from chorus.cluster.doctor.hub import Asked
from chorus.cluster.doctor.probe import Probe
from chorus.cluster.health import agent_problem
from chorus.cluster.servers import running_servers
from chorus.config.settings import Settings
from chorus.models.hub.cache import downloads_dir
from chorus.models.store import Store
from chorus.platform import cgroup, system
from chorus.platform.accelerator import device, mpi
from chorus.platform.accelerator.chip import chip
from chorus.platform.cpu import cores, products
from chorus.platform.memory import amounts
from chorus.platform.memory.ledger import Ledger, LedgerError, own_file
from chorus.platform.network.ports import free_port
from chorus.platform.storage.paths import SOCKET_NAME_BYTES, SOCKET_PATH_BYTES, models_dir, run_prefix, state_dir
from chorus.security.identity import Identity
from chorus.security.member import NotTrusted
from chorus.security.node_folder import DOOR_PORT

DISTRIBUTION = "mlx-chorus"
QUIET_SECONDS = 3600.0
"""A download that nothing was written to for so long is none that is under way."""
MOST_FILES = 10_000
"""How many files of a folder are looked at: on a network disk each takes its time."""


@dataclass(frozen=True)
class Folder:
    """A folder that Chorus writes to, or would make."""

    path: Path
    free: int
    problem: str = ""
    """Why it cannot be used; empty: it can."""
    flaw: str = ""
    """What is wrong with it all the same."""


@dataclass(frozen=True)
class Booked:
    what: str
    amount: int
    pid: int
    stopped: bool = False


@dataclass(frozen=True)
class Port:
    number: int
    what: str
    option: str
    """What chooses another one."""
    holder: str = ""
    """Who listens there: empty for nobody; `ours` or somebody else."""
    ours: bool = False


@dataclass(frozen=True)
class Facts:
    system: str
    description: str
    macos: tuple[int, ...]
    machine: str
    chip: str
    translated: bool
    """Whether this Python is one for another processor."""
    python: tuple[int, ...]
    installed: Mapping[str, str | None]
    pins: Mapping[str, str]
    wheels: Mapping[str, str | None]
    backend: device.Backend
    gpu_here: bool
    environment: Mapping[str, str]
    probe: Probe | str
    """What MLX said, or why it said nothing."""
    kernels: bool
    mpi: Path | None
    configuration: str
    """Why it cannot be read; empty: it can."""
    cores_usable: int
    cores_physical: int | None
    cores_logical: int | None
    memory_total: int
    memory_available: int
    container: cgroup.MemoryLimit | None
    swap_used: int
    pressure: float | None
    """Percent of the last minute in which somebody waited for memory; None where the system does not say."""
    memory_kills: int
    """Processes that the kernel has ended for want of memory, of this container or since this machine began."""
    wired_limit: str | None
    open_files: tuple[int, int]
    models: Folder
    state: Folder
    unfinished: tuple[tuple[Path, int], ...]
    """Downloads and copies that nobody works on, with the room they take."""
    bookings: tuple[Booked, ...] | str
    """Who has booked memory here, or why nobody can."""
    ports: tuple[Port, ...]
    clock_kept: bool | None
    """Whether the system sets its clock by the network; None where it does not say."""
    certificate_seconds: float | None
    """How long this node's certificate is still good; None where it has none."""
    hub_off: tuple[str, ...]
    hub_url: str
    hub_obstacle: str


def gather(probe: Probe | str, asked: Asked | None, settings: Settings | str) -> Facts:
    """Everything about this machine. `asked` is what Hugging Face was, unless somebody switched that off; `settings`
    are those in force here, or why there are none.
    """
    total = amounts.total_memory()
    kills = cgroup.memory_kills_file(Path("/"))
    return Facts(
        system=system.name(),
        description=system.description(),
        macos=system.macos_version() if system.is_mac() else (),
        machine=system.machine(),
        chip=chip(),
        translated=system.is_mac() and system.sysctl("sysctl.proc_translated") == "1",
        python=sys.version_info[:3],
        installed={
            "chorus": device.installed(DISTRIBUTION),
            "mlx": device.installed("mlx"),
            "mlx-lm": device.installed("mlx-lm"),
        },
        pins=pinned_versions(requirements()),
        wheels={name: device.installed(name) for name in ("mlx-cpu", *device.CUDA_PACKAGES)},
        backend=device.backend(),
        gpu_here=device.has_gpu(),
        environment=os.environ,
        probe=probe,
        kernels=products.installed(),
        mpi=mpi.library(),
        configuration=settings if isinstance(settings, str) else "",
        cores_usable=cores.usable_cores(),
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=os.cpu_count(),
        memory_total=total,
        memory_available=amounts.available_memory(),
        container=cgroup.memory_limit(Path("/")),
        swap_used=amounts.swap_used(),
        pressure=memory_pressure(),
        memory_kills=(cgroup.memory_kills(kills) or 0) if kills else 0,
        wired_limit=system.sysctl("iogpu.wired_limit_mb") if system.is_mac() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        models=folder_of(models_dir()),
        state=state_folder(state_dir()),
        unfinished=tuple(unfinished((copies_dir(), Store.default().aside, downloads_dir()), time.time())),
        bookings=booked(own_file()),
        ports=ports(settings),
        clock_kept=clock_kept(),
        certificate_seconds=certificate_seconds(state_dir() / "identity"),
        hub_off=tuple(switched_off(os.environ)),
        hub_url=asked.url if asked else "",
        hub_obstacle=asked.obstacle() if asked else "",
    )


def requirements() -> list[str]:
    """Our own metadata; none where Chorus runs from a folder that was never installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def pinned_versions(requirements: list[str]) -> dict[str, str]:
    """The exact versions in our own metadata, so that they are written down once."""
    always = (line for line in requirements if ";" not in line)
    pairs = (line.partition("==") for line in always if "==" in line)
    return {name.strip(): version.strip() for name, _, version in pairs}


def switched_off(environment: Mapping[str, str]) -> list[str]:
    """The variables by which somebody keeps Hugging Face from being asked."""
    return [
        name
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if environment.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE")
    ]


def memory_pressure(root: Path = Path("/")) -> float | None:
    """As Linux counts it; a Mac has three levels only, of which the upper two are as good as one minute of waiting."""
    if system.is_mac():
        return {"1": 0.0, "2": 50.0, "4": 100.0}.get(system.sysctl("kern.memorystatus_vm_pressure_level") or "")
    try:
        first = (root / "proc/pressure/memory").read_text().splitlines()[0]
        return float(dict(word.split("=") for word in first.split()[1:])["avg60"])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def folder_of(path: Path) -> Folder:
    """The folder, or the first above it that is there, where it would be made."""
    try:
        existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    except (OSError, StopIteration) as error:
        return Folder(path, 0, f"cannot be looked at: {error}")
    if not existing.is_dir():
        return Folder(path, free, f"{existing} is no folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Folder(path, free, f"nothing can be written to {existing}")
    return Folder(path, free)


def state_folder(path: Path) -> Folder:
    """It holds sockets and keys too: its name must be short, and nobody else may write to it."""
    found = folder_of(path)
    if found.problem or not path.exists():
        return found
    run = path.absolute() / "run"
    longest = len(os.fsencode(run / f"{run_prefix()}12345678")) + 1 + SOCKET_NAME_BYTES
    status = path.stat()
    flaw = ""
    if status.st_uid != os.geteuid():
        flaw = "it belongs to another user"
    elif status.st_mode & 0o022:
        flaw = "others may write to it"
    elif longest > SOCKET_PATH_BYTES:
        flaw = "its name is too long for sockets in it, which go to a temporary folder"
    return Folder(path, found.free, flaw=flaw)


def unfinished(folders: Iterable[Path], now: float) -> Iterable[tuple[Path, int]]:
    """What downloads and copies left behind that nobody has written to for a while."""
    for folder in folders:
        for path in itertools.islice(folder.rglob("*"), MOST_FILES):
            try:
                status = path.lstat()
                left = path.suffix in (".part", ".incomplete") or folder == Store.default().aside
                if left and path.is_file() and now - status.st_mtime > QUIET_SECONDS:
                    yield path, status.st_blocks * 512
            except OSError:
                continue  # it was finished, or taken away, in this moment


def booked(file: Path) -> tuple[Booked, ...] | str:
    """Who reads a ledger also strikes out whose process is gone."""
    if not file.exists():
        return ()
    try:
        found = Ledger(file, 0).bookings()
    except LedgerError as error:
        return str(error)
    return tuple(Booked(each.what, each.amount, each.pid, _is_stopped(each.pid)) for each in found)


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def ports(settings: Settings | str) -> tuple[Port, ...]:
    """The ports that `chorus serve` and `chorus join` would take here, and who has them."""
    servers = running_servers()
    found = []
    if isinstance(settings, Settings) and settings.api.port:
        ours = next((server for server in servers if server.port == settings.api.port), None)
        taken = free_port(settings.api.host, settings.api.port) is None
        holder = f"{ours.model}, at {ours.url}" if ours else "another program" if taken else ""
        found.append(Port(settings.api.port, "API", "--port", holder, ours is not None))
    agent = agent_problem(state_dir()) is None or any(server.name for server in servers)
    taken = free_port("0.0.0.0", DOOR_PORT) is None
    holder = ("the agent of this machine" if agent else "another program") if taken else ""
    found.append(Port(DOOR_PORT, "agent", "--listen", holder, agent))
    return tuple(found)


def certificate_seconds(folder: Path) -> float | None:
    try:
        return Identity(folder).left_seconds
    except (OSError, ValueError, NotTrusted):
        return None


def clock_kept() -> bool | None:
    """What systemd says of it; a Mac and a container say nothing."""
    told = system.told("timedatectl", "show", "--property", "NTPSynchronized", "--value").strip()
    return {"yes": True, "no": False}.get(told)
