"""What `chorus doctor` says about RDMA: whether it could run here and, where it is configured, whether it will."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chorus.cluster.doctor.finding import Check, Finding, Status, look
from chorus.platform.network.rdma import FIRST_MACOS, Rdma, interface_of
from chorus.platform.system import MAC
from chorus.transport import catalog
from chorus.transport.cables import FAST_SYNC, JACCL_FIRST

_ENABLE = "start this Mac in Recovery Mode, run `rdma_ctl enable` in its Terminal, then restart"
_UPDATE = "update this Mac to macOS 26.2 or newer, and the others of the cluster too"
_TRANSPORT = catalog.over_rdma()

Devices = Sequence[str | Sequence[str] | None]


@dataclass(frozen=True)
class WantedRdma:
    """What the configuration asks of RDMA on this machine."""

    rank: int | None
    """None: the configuration does not tell which of its machines this is."""
    devices: Devices = ()
    """By which device this rank reaches each other rank."""
    coordinator: str | None = None
    """Where the ranks meet; None: nobody says and rank 0's address is not known either."""

    @property
    def names(self) -> tuple[str, ...]:
        several = ((entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in self.devices)
        return tuple(dict.fromkeys(name for names in several for name in names))


@dataclass(frozen=True)
class RdmaFacts:
    seen: Rdma
    wanted: WantedRdma | None = None
    """Without a wish for it nothing here is a fault: only what is there is said, and what would be to do."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of this shell."""


def rdma_findings(
    seen: Rdma, wanted: WantedRdma | None = None, variables: Mapping[str, str] | None = None
) -> list[Finding]:
    return look(CHECKS, RdmaFacts(seen, wanted, variables or {}))


def availability(facts: RdmaFacts) -> Finding:
    seen, wanted = facts.seen, facts.wanted is not None
    value, fix = _obstacle(seen) or ("", "")
    if not value:
        return Finding("RDMA", f"enabled, with {', '.join(seen.devices or ())}")
    status: Status = "error" if wanted else "ok"
    return Finding("RDMA", value if wanted else f"not available: {value}", status, fix)


def ports(facts: RdmaFacts) -> Iterator[Finding]:
    seen = facts.seen
    if seen.system == MAC and seen.devices and not seen.only_slow_ports:
        needed = facts.wanted.names if facts.wanted else ()
        for device in seen.devices:
            yield port(seen, device, device in needed)


def port(seen: Rdma, device: str, needed: bool) -> Finding:
    interface = interface_of(device)
    belongs = f"{seen.interfaces[interface]} ({interface})" if interface in seen.interfaces else interface
    state = seen.ports.get(device)
    cable = next((each for each in seen.thunderbolt if each.interface == interface), None)
    if cable and cable.other_end and cable.too_slow:
        fix = "RDMA needs a cable and a Mac with Thunderbolt 5 at both ends"
        return Finding(device, f"{belongs}, its cable carries {cable.gigabits} Gbit/s", "warn" if needed else "ok", fix)
    if state == "PORT_ACTIVE":
        if seen.addresses.get(interface) or not seen.addresses or seen.bridge_of(interface):
            return Finding(device, f"{belongs}, port active")
        fix = (
            f"in System Settings, Network, add a service for {seen.interfaces.get(interface, interface)} and give it "
            "an IPv4 address, with a network of its own for each cable"
        )
        return Finding(device, f"{belongs}, port active, without an IPv4 address", "warn", fix)
    shown = f"{belongs}, port {'state unknown' if state is None else state.removeprefix('PORT_').lower()}"
    fix = "connect a Mac with Thunderbolt 5 that has RDMA enabled too"
    return Finding(device, shown, "warn", fix) if needed else Finding(device, f"{shown}: nothing connected to it")


def bridge(facts: RdmaFacts) -> Iterator[Finding]:
    """A port inside a bridge has no address of its own, without which RDMA does not begin."""
    seen = facts.seen
    if seen.system != MAC or seen.only_slow_ports:
        return
    own = {interface_of(device) for device in seen.devices or ()}
    for name, members in seen.bridges.items():
        if shared := [member for member in members if member in own]:
            fix = (
                "take these ports out of the Thunderbolt Bridge in System Settings, Network (until the next restart: "
                f"sudo ifconfig {name} deletem {shared[0]}), and give each a service of its own with an IPv4 address"
            )
            yield Finding("Thunderbolt bridge", f"{name} holds {', '.join(shared)}", "warn", fix)


def named_devices(facts: RdmaFacts) -> Iterator[Finding]:
    name, seen, wanted = f"{_TRANSPORT.name} devices", facts.seen, facts.wanted
    if wanted is None:
        return
    if wanted.rank is None:
        fix = "say which with `chorus doctor --rank N`, or set MLX_RANK"
        yield Finding(name, "the hostfile names none of this machine's addresses", "warn", fix)
        return
    if not wanted.devices:
        fix = (
            f"give a hostfile with `rdma` for each host: mlx.distributed_config --backend {_TRANSPORT.name} writes one"
        )
        yield Finding(name, f"none are named for rank {wanted.rank}", "error", fix)
        return
    missing = [device for device in wanted.names if device not in (seen.devices or ())]
    if missing:
        here = ", ".join(seen.devices or ()) or "none"
        value = f"{', '.join(missing)}, named for rank {wanted.rank}, not on this machine (here: {here})"
        yield Finding(name, value, "error", f"correct row {wanted.rank} of the hostfile, or the rank")
        return
    yield Finding(name, f"rank {wanted.rank} uses {', '.join(wanted.names)}")


def meeting(facts: RdmaFacts) -> Iterator[Finding]:
    wanted = facts.wanted
    if wanted is None:
        return
    if wanted.coordinator is None:
        fix = "set MLX_JACCL_COORDINATOR to an address and port of rank 0, e.g. 192.168.1.10:32323"
        yield Finding(f"{_TRANSPORT.name} coordinator", "not given, and the hostfile has no addresses", "error", fix)
    elif interface := _thunderbolt_to(facts.seen, wanted.coordinator):
        fix = "meet on Ethernet or Wi-Fi: IP beside RDMA on one cable was seen to break RDMA's beginning"
        yield Finding(f"{_TRANSPORT.name} coordinator", f"{wanted.coordinator}, over {interface}", "warn", fix)
    else:
        yield Finding(f"{_TRANSPORT.name} coordinator", wanted.coordinator)


def inherited(facts: RdmaFacts) -> Iterator[Finding]:
    """Variables of this shell that MLX would read."""
    variables = facts.variables
    if variables.get(FAST_SYNC, "0") not in ("", "0"):
        fix = f"unset {FAST_SYNC}: MLX calls it unreliable, and a GPU that it locks up stays so until a restart"
        yield Finding(FAST_SYNC, variables[FAST_SYNC], "warn", fix)
    for name in JACCL_FIRST:
        if name in variables:
            yield Finding(name, variables[name], "warn", f"unset {name}: ranks of Chorus ignore it")


def _thunderbolt_to(seen: Rdma, coordinator: str) -> str | None:
    """The Thunderbolt interface in whose network an address lies; None where there is none, or it is a name."""
    host = coordinator.partition(",")[0]
    try:
        address = ipaddress.ip_address(host.rpartition(":")[0] or host)
    except ValueError:
        return None
    own = {port.interface for port in seen.thunderbolt}
    for interface, many in seen.addresses.items():
        if interface in own and any(address in ipaddress.ip_interface(text).network for text in many):
            return interface
    return None


def _obstacle(seen: Rdma) -> tuple[str, str] | None:
    """The first thing in the way of RDMA, and what to do about it."""
    tool = "ibv_devices"
    if seen.system != MAC:
        listed = (
            f"{tool} did not answer"
            if tool in seen.silent
            else f"no {tool} here"
            if seen.devices is None
            else f"{tool} shows {', '.join(seen.devices) or 'no devices'}"
        )
        return f"{_TRANSPORT.name} runs on macOS only; {listed}", _TRANSPORT.elsewhere
    if seen.only_slow_ports:
        return "this Mac has no Thunderbolt 5", _TRANSPORT.without_hardware
    if seen.macos < FIRST_MACOS:
        return f"macOS {'.'.join(map(str, seen.macos)) or 'of unknown version'} has none", _UPDATE
    if tool in seen.silent:
        return f"{tool} did not answer in time", "restart this Mac"
    if seen.devices is None:
        return f"{tool} is not there", _UPDATE
    if seen.enabled is False:
        return "disabled", _ENABLE
    if not seen.devices:
        if seen.enabled:
            return "enabled, but no devices", _TRANSPORT.without_hardware
        return f"{tool} shows no devices", _ENABLE
    return None


CHECKS: tuple[Check[RdmaFacts], ...] = (
    Check(
        "RDMA",
        f"{_TRANSPORT.name} is asked for and this machine has no RDMA: the system, its version, the switch, the ports",
        availability,
    ),
    Check("RDMA ports", "a port that is down, without an IPv4 address of its own, or with too slow a cable", ports),
    Check("Thunderbolt bridge", "RDMA ports inside a bridge, where they have no address of their own", bridge),
    Check(
        f"{_TRANSPORT.name} devices",
        "devices that the hostfile names and this machine lacks; none; or no known rank",
        named_devices,
    ),
    Check(f"{_TRANSPORT.name} coordinator", "no place for ranks to meet, or one on a Thunderbolt cable", meeting),
    Check("variables", "variables of this shell that lock GPUs up, or that ranks ignore", inherited),
)
