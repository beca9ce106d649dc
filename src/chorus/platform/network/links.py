"""The addresses of this machine, and what each is an end of: a Thunderbolt cable, Ethernet, Wi-Fi, a VPN."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import psutil

from chorus.platform import system
from chorus.platform.network.rdma import parse_bridges, parse_interfaces

Kind = Literal["thunderbolt", "ethernet", "", "wifi", "bridge", "vpn", "loopback"]
"""What an address is an end of, the quickest first: empty where nobody says, bridge where it stays in the machine."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_MEDIA = re.compile(r"\((\d+(?:\.\d+)?)(G?)base", re.IGNORECASE)
_TUNNELS = ("utun", "ipsec", "ppp", "tun", "tap", "gif", "stf", "feth", "zt")
_INSIDE = ("bridge", "vmenet", "vmnet", "vnic", "vboxnet")
_SYSFS = Path("/sys/class/net")
_LOOPBACK_TYPE = 772
_TUNNEL_TYPES = {512, 768, 776, 778, 65534}
"""Of Linux: ppp, ipip, sit, gre, and none at all, as tun and WireGuard have it."""


@dataclass(frozen=True)
class Address:
    """One IPv4 address of a machine."""

    ip: str
    interface: str = ""
    kind: Kind = ""
    bits_per_second: int = 0
    """As the system says; 0 where it does not."""


def plugged() -> frozenset[tuple[str, str]]:
    """Which interfaces that are up have which IPv4 addresses: quickly told, so that changes can be watched for."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return frozenset(
        (name, address.address)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and _base(name) in up
    )


def addresses() -> tuple[Address, ...]:
    """Every address of this machine that others may reach, the quickest kinds first; loopback where there is no other.

    169.254 is kept: it is what a bare Thunderbolt cable has.
    """
    found = plugged()
    outside = [(name, ip) for name, ip in found if not ipaddress.ip_address(ip).is_loopback]
    kinds = _kinds(sorted({name for name, _ in outside}))
    told = [Address(ip, name, *kinds[name]) for name, ip in outside]
    return tuple(sorted(told, key=_order)) or (Address("127.0.0.1", "", "loopback"),)


def _order(address: Address) -> tuple[int, int, str, str]:
    return KINDS.index(address.kind), -address.bits_per_second, address.interface, address.ip


def slower(one: Kind, other: Kind) -> Kind:
    """What a link is whose two ends are of these kinds."""
    return max(one, other, key=KINDS.index)


def _kinds(names: list[str]) -> dict[str, tuple[Kind, int]]:
    if system.is_mac():
        ports, settings = system.told("networksetup", "-listallhardwareports"), system.told("ifconfig")
        return {name: (mac_kind(name, ports, settings), mac_speed(name, settings)) for name in names}
    return {name: (linux_kind(_SYSFS / base), linux_speed(_SYSFS / base)) for name in names for base in [_base(name)]}


def _base(name: str) -> str:
    """Without the label of a second address, as in eth0:1."""
    return name.partition(":")[0]


def mac_kind(interface: str, ports: str, settings: str) -> Kind:
    """From what `networksetup -listallhardwareports` and `ifconfig` say. A bridge of Thunderbolt ports is the cable."""
    names, members = parse_interfaces(ports), parse_bridges(settings).get(interface, ())
    if interface.startswith("lo"):
        return "loopback"
    if interface.startswith(_TUNNELS) or "POINTOPOINT" in _flags(interface, settings):
        return "vpn"
    if members and all(_is_thunderbolt(names.get(member, "")) for member in members):
        return "thunderbolt"
    port = names.get(interface, "")
    if _is_thunderbolt(port) and not (interface.startswith("bridge") and members):
        return "thunderbolt"
    if interface.startswith(_INSIDE):
        return "bridge"
    return "wifi" if port in ("Wi-Fi", "AirPort") else "ethernet"


def _is_thunderbolt(port: str) -> bool:
    """A cable between computers, and not an Ethernet adapter that happens to sit on Thunderbolt."""
    return port.startswith("Thunderbolt") and "Ethernet" not in port


def mac_speed(interface: str, settings: str) -> int:
    """Bits per second by the medium that `ifconfig` names: (10Gbase-T <full-duplex>)."""
    found = _MEDIA.search(_block(interface, settings))
    return int(float(found[1]) * (1e9 if found[2] else 1e6)) if found else 0


def _flags(interface: str, settings: str) -> list[str]:
    return _block(interface, settings).partition("<")[2].partition(">")[0].split(",")


def _block(interface: str, settings: str) -> str:
    """The lines of `ifconfig` about one interface: the first begins at the margin."""
    found = re.search(rf"^{re.escape(interface)}:.*(?:\n[ \t].*)*", settings, re.MULTILINE)
    return found[0] if found else ""


def linux_kind(folder: Path) -> Kind:
    """From an interface's folder in /sys/class/net. A bridge with a real port in it is what the port is."""
    number = _number(folder / "type")
    if number == _LOOPBACK_TYPE:
        return "loopback"
    if number in _TUNNEL_TYPES or (folder / "tun_flags").exists():
        return "vpn"
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wifi"
    if (folder / "bridge").is_dir():
        real = [port.name for port in (folder / "brif").glob("*") if (folder.parent / port.name / "device").exists()]
        return linux_kind(folder.parent / sorted(real)[0]) if real else "bridge"
    return "thunderbolt" if "thunderbolt" in (folder / "device" / "driver").resolve().name else "ethernet"


def linux_speed(folder: Path) -> int:
    """Bits per second; what no hardware is behind says any number."""
    return max(0, _number(folder / "speed")) * 10**6 if (folder / "device").exists() else 0


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
