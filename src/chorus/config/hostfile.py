"""Hostfiles as people have them, read into one form. The order of hosts is the order of ranks.

Five spellings are in use: addresses, lists of addresses, hosts with `ssh`, `ips` and `rdma`, any of these inside an
object with `backend` and `envs`, and a matrix of RDMA devices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from chorus.errors import ChorusError
from chorus.transport import catalog

DEFAULT_PORT = 50051
BACKENDS = catalog.spellings()
"""What hostfiles and variables call a transport, and what we do."""
TUNNELS_FILE = "localai_mlx_hostfile.json"
"""What LocalAI's own p2p writes: the workers' tunnels, and not rank 0."""

RdmaDevice = str | tuple[str, ...] | None
"""The RDMA device towards one other rank, several of them, or None: towards oneself, and in a ring towards all but the
neighbours."""

_HOST_KEYS = ("ssh", "ips", "rdma")
_FILE_KEYS = ("backend", "envs", "hosts")


class BadAddress(ChorusError, ValueError):
    """A text that is no address: says what was expected."""


class HostfileError(ChorusError, ValueError):
    """`key` is the place inside the file, the message what was expected there."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key


class Host(Protocol):
    """Where a rank is: an entry of a hostfile, or a device of the settings."""

    @property
    def hostname(self) -> str | None: ...

    @property
    def port(self) -> int: ...

    @property
    def rdma(self) -> tuple[RdmaDevice, ...]: ...


@dataclass(frozen=True)
class HostEntry:
    """One host of a hostfile, whichever way it was spelled."""

    ssh: str | None = None
    addresses: tuple[str, ...] = ()
    """As written: an IP address or a name, with or without a port."""
    rdma: tuple[RdmaDevice, ...] = ()

    @property
    def hostname(self) -> str | None:
        """Where to reach it: its first address, else the host that ssh goes to; None in a bare RDMA matrix."""
        if self.addresses:
            return split_address(self.addresses[0])[0]
        return self.ssh.rpartition("@")[2] if self.ssh else None

    @property
    def port(self) -> int:
        given = split_address(self.addresses[0])[1] if self.addresses else None
        return given or DEFAULT_PORT


@dataclass(frozen=True)
class Hostfile:
    """The hosts of all ranks, and what holds for all of them."""

    hosts: tuple[HostEntry, ...]
    backend: str | None = None
    envs: tuple[tuple[str, str], ...] = ()


def is_hostfile(content: Any) -> bool:
    """Whether a file's content is a hostfile and not a tree of settings."""
    return isinstance(content, list) or (isinstance(content, dict) and "hosts" in content)


def parse_hostfile(content: Any) -> Hostfile:
    if isinstance(content, dict):
        _check_keys(content, _FILE_KEYS, "")
        if "hosts" not in content:
            raise HostfileError("hosts", "missing; expected the list of hosts in rank order")
        hosts = _hosts(content["hosts"], "hosts")
        return Hostfile(hosts, _backend(content.get("backend")), _envs(content.get("envs")))
    hosts = _hosts(content, "")
    return Hostfile(hosts, catalog.over_rdma().name if _is_matrix(content) else None)


def address_refusal(hosts: Sequence[Host]) -> str | None:
    """Why no rank could reach these hosts, with the form that would do; None where each has an address.

    jaccl's own file is a matrix of devices alone: enough to look at the cables by, not to start anything.
    """
    rank = next((rank for rank, host in enumerate(hosts) if host.hostname is None), None)
    if rank is None:
        return None
    if not hosts[rank].rdma:
        return f"rank {rank} has no address: give its hostname"
    written = [{"ips": [f"192.168.1.{10 + rank}:5555"], "rdma": host.rdma} for rank, host in enumerate(hosts[:2])]
    form = ", ".join(map(json.dumps, written)) + (", …" if len(hosts) > 2 else "")
    return f"rank {rank} has RDMA devices and no address for others to reach it: write each host's ips too, [{form}]"


def rdma_refusal(hosts: Sequence[Host], transport: str) -> str | None:
    """Why these hosts cannot be joined by this transport, with what to write; None where it can be tried."""
    if transport != catalog.over_rdma().name or len(hosts) < 2 or all(host.rdma for host in hosts):
        return None
    form = '[{"ips": ["192.168.1.10:5555"], "rdma": [null, "rdma_en5"]}, …]'
    return f"{transport} needs the RDMA devices of every rank, e.g. {form}"


def split_address(text: str) -> tuple[str, int | None]:
    """(host, port) of `10.0.0.1`, `10.0.0.1:5000`, `name.local:5000`, `[fe80::1]:5000` or `fe80::1`."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise BadAddress(f"expected an address like [fe80::1]:5000, got {text!r}")
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or any(character.isspace() for character in text) or text.endswith(":"):
        raise BadAddress(f"expected an address like 10.0.0.2:5000, got {text!r}")
    if not port:
        return host, None
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise BadAddress(f"expected a port from 1 to 65535 after the colon, got {text!r}")
    return host, int(port)


def _hosts(content: Any, key: str) -> tuple[HostEntry, ...]:
    if not isinstance(content, list) or not content:
        raise HostfileError(key or "hosts", f"expected a list with at least one host, got {_shown(content)}")
    if _is_matrix(content):
        rows = [_rdma(row, f"{key}[{rank}]", rank, len(content)) for rank, row in enumerate(content)]
        return tuple(HostEntry(rdma=row) for row in rows)
    kind: type = type(content[0])
    if kind not in _READERS:
        expected = "an address, a list of addresses, or an object with ssh and ips"
        raise HostfileError(f"{key}[0]", f"expected {expected}, got {_shown(content[0])}")
    hosts = []
    for rank, entry in enumerate(content):
        if type(entry) is not kind:
            raise HostfileError(f"{key}[{rank}]", f"expected {_KINDS[kind]} as in the first, got {_shown(entry)}")
        hosts.append(_READERS[kind](entry, f"{key}[{rank}]", rank, len(content)))
    return tuple(hosts)


_KINDS: Mapping[type, str] = {str: "an address", list: "a list of addresses", dict: "an object"}


def _host_of_text(entry: str, key: str, rank: int, ranks: int) -> HostEntry:
    return HostEntry(addresses=(_address(entry, key),))


def _host_of_list(entry: list[Any], key: str, rank: int, ranks: int) -> HostEntry:
    if not entry:
        raise HostfileError(key, "expected at least one address, got an empty list")
    return HostEntry(addresses=tuple(_address(text, f"{key}[{index}]") for index, text in enumerate(entry)))


def _host_of_object(entry: dict[str, Any], key: str, rank: int, ranks: int) -> HostEntry:
    _check_keys(entry, _HOST_KEYS, key)
    ssh, ips, rdma = entry.get("ssh"), entry.get("ips") or [], entry.get("rdma") or []
    if ssh is not None and (not isinstance(ssh, str) or not ssh.strip()):
        raise HostfileError(f"{key}.ssh", f"expected a host as ssh knows it, got {_shown(ssh)}")
    if not isinstance(ips, list):
        raise HostfileError(f"{key}.ips", f"expected a list of addresses, got {_shown(ips)}")
    if not ssh and not ips:
        raise HostfileError(key, "expected ssh or ips, so that the host can be reached")
    addresses = tuple(_address(text, f"{key}.ips[{index}]") for index, text in enumerate(ips))
    return HostEntry(ssh, addresses, _rdma(rdma, f"{key}.rdma", rank, ranks) if rdma else ())


_READERS: Mapping[type, Callable[[Any, str, int, int], HostEntry]] = {
    str: _host_of_text,
    list: _host_of_list,
    dict: _host_of_object,
}


def _address(text: Any, key: str) -> str:
    if not isinstance(text, str):
        raise HostfileError(key, f"expected an address like 10.0.0.2:5000, got {_shown(text)}")
    try:
        split_address(text)
    except ValueError as error:
        raise HostfileError(key, str(error)) from None
    return text


def _is_matrix(content: Any) -> bool:
    """Only a matrix of RDMA devices has nulls in its rows."""
    return isinstance(content, list) and any(isinstance(row, list) and None in row for row in content)


def _rdma(row: Any, key: str, rank: int, ranks: int) -> tuple[RdmaDevice, ...]:
    if not isinstance(row, list) or len(row) != ranks:
        raise HostfileError(key, f"expected {ranks} RDMA devices, one per rank, got {_shown(row)}")
    for other, device in enumerate(row):
        if other == rank and device is not None:
            raise HostfileError(f"{key}[{other}]", f"expected null, a rank's place for itself, got {_shown(device)}")
        beside = abs(other - rank) in (1, ranks - 1)
        if device is None and not beside:
            continue
        if other != rank and not (device and all(isinstance(name, str) and name for name in _several(device))):
            raise HostfileError(f"{key}[{other}]", f"expected an RDMA device like rdma_en5, got {_shown(device)}")
    return tuple(tuple(device) if isinstance(device, list) else device for device in row)


def _several(device: Any) -> Sequence[Any]:
    return device if isinstance(device, list) else [device]


def _backend(name: Any) -> str | None:
    if name in (None, ""):
        return None
    if not isinstance(name, str) or name not in BACKENDS:
        raise HostfileError("backend", f"expected one of {', '.join(BACKENDS)}, got {_shown(name)}")
    return BACKENDS[name]


def _envs(envs: Any) -> tuple[tuple[str, str], ...]:
    if envs is None:
        return ()
    if isinstance(envs, dict):
        return tuple((str(name), str(value)) for name, value in envs.items())
    if not isinstance(envs, list):
        raise HostfileError("envs", f"expected a list of NAME=VALUE, got {_shown(envs)}")
    return tuple(_pairs(envs))


def _pairs(envs: list[Any]) -> Iterator[tuple[str, str]]:
    for index, text in enumerate(envs):
        name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not name or not equals:
            raise HostfileError(f"envs[{index}]", f"expected NAME=VALUE, got {_shown(text)}")
        yield name, value


def _check_keys(entry: Mapping[str, Any], known: Sequence[str], key: str) -> None:
    for name in entry:
        if name not in known:
            near = get_close_matches(str(name), known, 1, 0.5)
            hint = f", did you mean {near[0]}?" if near else ""
            place = f"{key}.{name}" if key else str(name)
            raise HostfileError(place, f"no such key{hint}; expected {', '.join(known)}")


def _shown(value: Any) -> str:
    """A value in a message: short enough that the message stays one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
