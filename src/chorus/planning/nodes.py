"""Nodes and links for the planner: from what a user wrote, or from what this machine measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chorus.config.file import ConfigError
from chorus.config.older_projects import LOCAL_NAMES
from chorus.config.sections import Capabilities, DeviceConfig
from chorus.planning.costs import ETHERNET, LOOPBACK, METAL_SUM_SECONDS, Links, LinkSpeed, Machine
from chorus.platform.accelerator.device import Backend
from chorus.platform.memory import mac

GPU_CORE_FLOPS = 0.28e12
GPU_CORE_BANDWIDTH = 10e9
"""What one Apple GPU core brings, M1 to M4, at the share of its peak that real kernels reach."""
METAL_LAYER_SECONDS = 5e-5
ASSUMED_CORES = 10
ASSUMED = {"cuda": (60e12, 700e9), "cpu": (0.2e12, 20e9)}
"""Flops and bandwidth of a node about which nothing was said."""
QUANTIZED_ON_CPU = (1 / 43, 1 / 14)
"""Flops and bandwidth of MLX's quantized products on a CPU, as parts of those in float32; measured on one core."""
KERNEL_LAYER_SECONDS = 6e-4
"""What a layer costs a CPU that multiplies packed weights, however small it is; measured on two cores."""
LINK_KINDS = {
    "loopback": LOOPBACK,
    "wifi": LinkSpeed(latency=0.003, bandwidth=30e6, all_reduce=0.006),
    "ethernet": ETHERNET,
    "10g": LinkSpeed(latency=0.0004, bandwidth=1.1e9, all_reduce=0.0006),
    "thunderbolt": LinkSpeed(latency=0.0004, bandwidth=2e9, all_reduce=0.0004 + METAL_SUM_SECONDS),
    "rdma": LinkSpeed(latency=0.0004, bandwidth=3.5e9, all_reduce=0.00005 + METAL_SUM_SECONDS),
}
"""Published measurements where nobody has measured these machines: docs/tensor.md has the sources."""
_GB = 10**9
_NODE = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<memory>\d+(?:\.\d+)?)\s*(?:GB?)?(?::(?P<cores>\d+))?", re.IGNORECASE)


@dataclass(frozen=True)
class Machines:
    """What a plan is made over, and what had to be assumed about it."""

    nodes: tuple[Machine, ...]
    links: Links
    notes: tuple[str, ...] = ()


def parse_nodes(text: str, memory_fraction: float) -> Machines:
    """Machines from `48GB:30,16GB:10`: memory and GPU cores of Macs, in rank order, with names in front if wanted."""
    devices = []
    for rank, part in enumerate(text.split(",")):
        match = _NODE.fullmatch(part.strip())
        if match is None or float(match["memory"]) <= 0 or match["cores"] == "0":
            raise ConfigError(f"--nodes: expected memory and GPU cores like 48GB:30, got {part.strip()!r}")
        cores = int(match["cores"]) if match["cores"] else None
        offers = Capabilities(memory_gb=float(match["memory"]), gpu_cores=cores)
        devices.append(DeviceConfig(device_id=match["name"] or f"node{rank}", hostname=None, capabilities=offers))
    return described(devices, memory_fraction)


def described(devices: Sequence[DeviceConfig], memory_fraction: float, here: Machine | None = None) -> Machines:
    """Machines as their configuration describes them; `here` stands in for this one where it does not."""
    nodes, notes = [], []
    for rank, device in enumerate(devices):
        offers = device.capabilities
        if offers.memory_gb is None:
            if here is None or device.hostname not in LOCAL_NAMES:
                raise ConfigError(
                    f"devices[{rank}].capabilities.memory_gb: missing; expected the memory of {device.device_id}"
                )
            nodes.append(replace(here, name=device.device_id))
            continue
        flops, bandwidth, assumed = rates_of(offers)
        if assumed:
            notes.append(f"{device.device_id}: {assumed}")
        memory = usable_memory(offers.backend, int(offers.memory_gb * _GB), memory_fraction)
        machine = Machine(device.device_id, offers.backend, memory, flops, bandwidth)
        if offers.backend == "metal":
            machine = replace(machine, layer_seconds=METAL_LAYER_SECONDS)
        elif offers.backend == "cpu":  # as installed with the [cpu] extra
            machine = replace(
                machine,
                packed_flops=flops * QUANTIZED_ON_CPU[0],
                packed_bandwidth=bandwidth * QUANTIZED_ON_CPU[1],
                kernel_flops=flops,
                kernel_bandwidth=bandwidth,
                kernel_layer_seconds=KERNEL_LAYER_SECONDS,
            )
        nodes.append(machine)
    return Machines(tuple(nodes), Links(_usual_link(devices)), tuple(notes))


def usable_memory(backend: Backend, total: int, fraction: float) -> int:
    """What a rank may take of a machine of which only the size is known."""
    if backend != "metal":
        return int(total * fraction)
    return mac.budget(total, mac.stock_working_set(total), fraction).room


def rates_of(offers: Capabilities) -> tuple[float, float, str]:
    """What a device can do: flops, bandwidth, and what had to be assumed."""
    assumed = ""
    if offers.backend == "metal":
        cores = offers.gpu_cores or ASSUMED_CORES
        flops, bandwidth = cores * GPU_CORE_FLOPS, cores * GPU_CORE_BANDWIDTH
        if offers.gpu_cores is None and not (offers.tflops and offers.bandwidth_gbs):
            assumed = f"gpu_cores not given, {ASSUMED_CORES} assumed"
    else:
        flops, bandwidth = ASSUMED[offers.backend]
        if not (offers.tflops and offers.bandwidth_gbs):
            assumed = f"tflops and bandwidth_gbs not given, {flops / 1e12:g} and {bandwidth / 1e9:g} assumed"
    return (
        offers.tflops * 1e12 if offers.tflops else flops,
        offers.bandwidth_gbs * 1e9 if offers.bandwidth_gbs else bandwidth,
        assumed,
    )


def _usual_link(devices: Sequence[DeviceConfig]) -> LinkSpeed:
    if all(device.hostname in LOCAL_NAMES for device in devices):
        return LOOPBACK
    return LINK_KINDS["rdma"] if all(device.rdma for device in devices) else ETHERNET
