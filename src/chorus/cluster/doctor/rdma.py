"""What `chorus doctor` says about RDMA: whether it could run here and, where it is configured, whether it will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chorus.cluster.doctor.checks import Finding, Status
from chorus.platform.rdma import FIRST_MACOS, Rdma, interface_of
from chorus.transport import catalog

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


def rdma_findings(seen: Rdma, wanted: WantedRdma | None = None) -> list[Finding]:
    """Without a wish for it nothing here is a fault: only what is there is said, and what would be to do."""
    found = [availability(seen, wanted is not None)]
    if seen.system == "Darwin" and seen.devices:
        needed = wanted.names if wanted else ()
        found += [port(seen, device, device in needed) for device in seen.devices]
        found += bridge(seen)
    if wanted is not None:
        found += [*named_devices(seen, wanted), *meeting(wanted)]
    return found


def availability(seen: Rdma, wanted: bool) -> Finding:
    value, fix = _obstacle(seen) or ("", "")
    if not value:
        return Finding("RDMA", f"enabled, with {', '.join(seen.devices or ())}")
    status: Status = "missing" if wanted else "ok"
    return Finding("RDMA", value if wanted else f"not available: {value}", status, fix)


def port(seen: Rdma, device: str, needed: bool) -> Finding:
    interface = interface_of(device)
    belongs = f"{seen.interfaces[interface]} ({interface})" if interface in seen.interfaces else interface
    state = seen.ports.get(device)
    if state == "PORT_ACTIVE":
        return Finding(device, f"{belongs}, port active")
    shown = f"{belongs}, port {'state unknown' if state is None else state.removeprefix('PORT_').lower()}"
    fix = "connect a Mac with Thunderbolt 5 that has RDMA enabled too"
    return Finding(device, shown, "warn", fix) if needed else Finding(device, f"{shown}: nothing connected to it")


def bridge(seen: Rdma) -> Iterator[Finding]:
    """A port inside a bridge forwards for it, and RDMA between two Macs then fails or turns slow."""
    own = {interface_of(device) for device in seen.devices or ()}
    for name, members in seen.bridges.items():
        if shared := [member for member in members if member in own]:
            fix = f"sudo ifconfig {name} down, and remove the Thunderbolt Bridge in System Settings, Network"
            yield Finding("Thunderbolt bridge", f"{name} holds {', '.join(shared)}", "warn", fix)


def named_devices(seen: Rdma, wanted: WantedRdma) -> Iterator[Finding]:
    name = f"{_TRANSPORT.name} devices"
    if wanted.rank is None:
        fix = "say which with `chorus doctor --rank N`, or set MLX_RANK"
        yield Finding(name, "the hostfile names none of this machine's addresses", "warn", fix)
        return
    if not wanted.devices:
        fix = (
            f"give a hostfile with `rdma` for each host: mlx.distributed_config --backend {_TRANSPORT.name} writes one"
        )
        yield Finding(name, f"none are named for rank {wanted.rank}", "missing", fix)
        return
    missing = [device for device in wanted.names if device not in (seen.devices or ())]
    if missing:
        here = ", ".join(seen.devices or ()) or "none"
        value = f"{', '.join(missing)}, named for rank {wanted.rank}, not on this machine (here: {here})"
        yield Finding(name, value, "missing", f"correct row {wanted.rank} of the hostfile, or the rank")
        return
    yield Finding(name, f"rank {wanted.rank} uses {', '.join(wanted.names)}")


def meeting(wanted: WantedRdma) -> Iterator[Finding]:
    if wanted.coordinator is None:
        fix = "set MLX_JACCL_COORDINATOR to an address and port of rank 0, e.g. 192.168.1.10:32323"
        yield Finding(f"{_TRANSPORT.name} coordinator", "not given, and the hostfile has no addresses", "missing", fix)
    else:
        yield Finding(f"{_TRANSPORT.name} coordinator", wanted.coordinator)


def _obstacle(seen: Rdma) -> tuple[str, str] | None:
    """The first thing in the way of RDMA, and what to do about it."""
    tool = "ibv_devices"
    if seen.system != "Darwin":
        listed = (
            f"{tool} did not answer"
            if tool in seen.silent
            else f"no {tool} here"
            if seen.devices is None
            else f"{tool} shows {', '.join(seen.devices) or 'no devices'}"
        )
        return f"{_TRANSPORT.name} runs on macOS only; {listed}", _TRANSPORT.elsewhere
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
