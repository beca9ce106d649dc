"""RDMA over Thunderbolt as the system's own tools describe it. Each reader is a pure function of a tool's output."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chorus.platform import system as this_system
from chorus.platform.system import TOOL_SECONDS

FIRST_MACOS = (26, 2)
"""The first version with RDMA over Thunderbolt."""
DEVICE_PREFIX = "rdma_"
FIRST_GIGABITS = 80
"""What a cable of Thunderbolt 5 carries; the generations before it reach 40 and have no RDMA, whatever is listed."""
MAX_PORTS = 64

_GUID = re.compile(r"[0-9a-f]{16}|[0-9a-f]{4}(?::[0-9a-f]{4}){3}")


@dataclass(frozen=True)
class ThunderboltPort:
    """One socket of the case, and the Mac at the other end of its cable."""

    interface: str
    own_end: str = ""
    """How Macs call this port among each other; empty while nothing is plugged in."""
    other_end: str = ""
    """How the port is called that the cable leads to; empty where no Mac is there."""
    gigabits: int | None = None
    """Of the cable, or of the port where none is plugged in; None where the system does not say."""

    @property
    def too_slow(self) -> bool:
        return self.gigabits is not None and self.gigabits < FIRST_GIGABITS


@dataclass(frozen=True)
class RdmaPort:
    """An RDMA device as other machines must know it: where its cable leads, and whether jaccl can use it."""

    device: str
    own_end: str
    other_end: str
    obstacle: str = ""
    """Why jaccl cannot use it, for people; empty: it can."""


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
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """IPv4 addresses of each network interface, with the length of their network: 10.0.0.1/24."""
    thunderbolt: tuple[ThunderboltPort, ...] = ()

    def bridge_of(self, interface: str) -> str | None:
        return next((bridge for bridge, members in self.bridges.items() if interface in members), None)

    @property
    def only_slow_ports(self) -> bool:
        """Whether this Mac has no port of Thunderbolt 5; False where that is not known."""
        return bool(self.thunderbolt) and all(port.too_slow for port in self.thunderbolt)


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
    if system != this_system.MAC:
        return Rdma(system, devices=devices, silent=tuple(silent))
    interfaces = parse_interfaces(ask("networksetup", "-listallhardwareports") or "")
    network = ask("ifconfig") or ""
    return Rdma(
        system,
        this_system.macos_version(),
        devices,
        parse_status(ask("rdma_ctl", "status") or ""),
        parse_ports(ask("ibv_devinfo") or "") if devices else {},
        interfaces,
        parse_bridges(network),
        tuple(silent),
        parse_addresses(network),
        parse_thunderbolt(ask("system_profiler", "SPThunderboltDataType", "-json") or "", interfaces),
    )


def ports(seen: Rdma) -> tuple[RdmaPort, ...]:
    """The RDMA devices of this machine whose cable leads to another Mac."""
    cabled = {port.interface: port for port in seen.thunderbolt if port.own_end and port.other_end}
    return tuple(
        RdmaPort(device, port.own_end, port.other_end, _obstacle(seen, device, port))
        for device in seen.devices or ()
        if (port := cabled.get(interface_of(device)))
    )


def _obstacle(seen: Rdma, device: str, port: ThunderboltPort) -> str:
    if port.too_slow:
        return f"its cable carries {port.gigabits} Gbit/s, which is not Thunderbolt 5"
    if seen.ports.get(device) != "PORT_ACTIVE":
        return "its port is not active"
    if bridge := seen.bridge_of(port.interface):
        return f"{port.interface} is a member of {bridge}"
    return "" if seen.addresses.get(port.interface) else f"{port.interface} has no IPv4 address"


def meeting_addresses(seen: Rdma) -> tuple[str, ...]:
    """Addresses where ranks may meet, 10.0.0.1/24, the best first. Thunderbolt comes last: what is said there by IP
    while RDMA begins was seen to break it.
    """
    thunderbolt = {port.interface for port in seen.thunderbolt} | set(seen.bridges)

    def order(interface: str) -> tuple[bool, bool, bool]:
        name = seen.interfaces.get(interface, "")
        return interface in thunderbolt or "Thunderbolt" in name, not name, "Wi-Fi" in name

    found = [(interface, address) for interface, many in seen.addresses.items() for address in many]
    usable = [(interface, address) for interface, address in found if not ipaddress.ip_interface(address).is_loopback]
    return tuple(address for _, address in sorted(usable, key=lambda each: order(each[0])))


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


def parse_addresses(text: str) -> dict[str, tuple[str, ...]]:
    """`ifconfig`: the IPv4 addresses of each interface, with the length of their network."""
    found: dict[str, list[str]] = {}
    interface = ""
    for line in text.splitlines():
        words = line.split()
        if line[:1].strip():
            interface = line.partition(":")[0]
        elif interface and words[:1] == ["inet"] and len(words) >= 4 and words[2] == "netmask":
            try:
                mask = ipaddress.IPv4Address(int(words[3], 16))
                found.setdefault(interface, []).append(str(ipaddress.IPv4Interface(f"{words[1]}/{mask}")))
            except ValueError:
                continue
    return {name: tuple(many) for name, many in found.items()}


def parse_thunderbolt(text: str, interfaces: Mapping[str, str]) -> tuple[ThunderboltPort, ...]:
    """`system_profiler SPThunderboltDataType -json`: each port names itself and the Mac that is plugged in directly."""
    try:
        buses = json.loads(text)["SPThunderboltDataType"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
    by_name = {name: interface for interface, name in interfaces.items()}
    found = []
    for bus in _dicts(buses)[:MAX_PORTS]:
        tag = bus.get("receptacle_1_tag")
        tag = tag if isinstance(tag, dict) else {}
        if interface := by_name.get(f"Thunderbolt {tag.get('receptacle_id_key')}"):
            others = [end for item in _dicts(bus.get("_items")) if (end := _end(item))]
            speed = re.search(r"(\d{1,4}) Gb/s", str(tag.get("current_speed_key")))
            gigabits = int(speed[1]) if speed else None
            found.append(ThunderboltPort(interface, _end(bus), others[0] if others else "", gigabits))
    return tuple(found)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _end(entry: Mapping[str, Any]) -> str:
    name = entry.get("domain_uuid_key")
    return name.upper()[:64] if isinstance(name, str) else ""
