"""RDMA over Thunderbolt as the system's own tools describe it. Each reader is a pure function of a tool's output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from chorus.platform import system as this_system
from chorus.platform.system import TOOL_SECONDS

FIRST_MACOS = (26, 2)
"""The first version with RDMA over Thunderbolt."""
DEVICE_PREFIX = "rdma_"

_GUID = re.compile(r"[0-9a-f]{16}|[0-9a-f]{4}(?::[0-9a-f]{4}){3}")


@dataclass(frozen=True)
class Rdma:
    """What was seen on this machine."""

    system: str
    macos: tuple[int, ...] = ()
    devices: tuple[str, ...] | None = None
    """As `ibv_devices` lists them; None where there is no such tool."""
    enabled: bool | None = None
    """None where `rdma_ctl` is missing or says something unknown."""
    ports: Mapping[str, str] = field(default_factory=dict)
    """State of each device's port, e.g. PORT_ACTIVE."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """What each network interface is, e.g. en2: Thunderbolt 1."""
    bridges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bridges that are up, with their members."""
    silent: tuple[str, ...] = ()
    """Tools that did not answer in time."""


def look(seconds: float = TOOL_SECONDS) -> Rdma:
    """Ask every tool that this system should have, each for at most so long."""
    system, silent = this_system.name(), []

    def ask(*command: str) -> str | None:
        try:
            return this_system.tool_output(*command, seconds=seconds)
        except subprocess.TimeoutExpired:
            silent.append(command[0])
            return ""

    listed = ask("ibv_devices")
    devices = None if listed is None else parse_devices(listed)
    if system != "Darwin":
        return Rdma(system, devices=devices, silent=tuple(silent))
    return Rdma(
        system,
        this_system.macos_version(),
        devices,
        parse_status(ask("rdma_ctl", "status") or ""),
        parse_ports(ask("ibv_devinfo") or "") if devices else {},
        parse_interfaces(ask("networksetup", "-listallhardwareports") or ""),
        parse_bridges(ask("ifconfig") or ""),
        tuple(silent),
    )


def interface_of(device: str) -> str:
    """macOS names an RDMA device after the network interface of the same port."""
    return device.removeprefix(DEVICE_PREFIX)


def parse_devices(text: str) -> tuple[str, ...]:
    """`ibv_devices`: a heading, then a name and a GUID in each line."""
    rows = [line.split() for line in text.splitlines()]
    return tuple(row[0] for row in rows if len(row) >= 2 and _GUID.fullmatch(row[1]))


def parse_status(text: str) -> bool | None:
    """`rdma_ctl status`: one word, possibly in a sentence."""
    words = re.findall(r"[a-z]+", text.lower())
    if "disabled" in words:
        return False
    return True if "enabled" in words else None


def parse_ports(text: str) -> dict[str, str]:
    """`ibv_devinfo`: blocks that begin with hca_id, each with the state of its port."""
    states: dict[str, str] = {}
    device = None
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device = value
        elif key == "state" and device and states.get(device) != "PORT_ACTIVE":
            states[device] = value.split()[0] if value else ""
    return states


def parse_interfaces(text: str) -> dict[str, str]:
    """`networksetup -listallhardwareports`: the name of a port, then its device, in pairs of lines."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "Hardware Port":
            name = value
        elif key == "Device" and name:
            found[value] = name
    return found


def parse_bridges(text: str) -> dict[str, tuple[str, ...]]:
    """`ifconfig`: the members of each bridge that is up."""
    members: dict[str, list[str]] = {}
    bridge = None
    for line in text.splitlines():
        if line[:1].strip():
            name, _, rest = line.partition(":")
            flags = rest.partition("<")[2].partition(">")[0].split(",")
            bridge = name if name.startswith("bridge") and "UP" in flags else None
        elif bridge and line.split()[:1] == ["member:"]:
            members.setdefault(bridge, []).append(line.split()[1])
    return {name: tuple(found) for name, found in members.items()}
