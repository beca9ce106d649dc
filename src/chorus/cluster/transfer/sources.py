"""From whom a node copies: decided by the coordinator, which knows who has what."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chorus.security.names import split_member


@dataclass(frozen=True)
class FileSource:
    """A node that has files, and where its door is."""

    address: str
    """ID@HOST:PORT. Empty until it is known who asks, for the machine that serves: each node reaches it at an address
    of its own.
    """
    files: frozenset[str]


def choose_sources(
    wanted: Mapping[str, frozenset[str]], sources: Sequence[FileSource]
) -> dict[str, tuple[FileSource, ...]]:
    """For each door that wants files, the others that have some, best first.

    Whoever has all of them comes before whoever has a part. Among equals, the one that fewest nodes were sent to so far
    comes first: nodes that start together then spread over the sources instead of all asking the same one.
    """
    sent: dict[str, int] = {}
    chosen: dict[str, tuple[FileSource, ...]] = {}
    for door, files in wanted.items():
        useful = [s for s in sources if s.address != door and s.files & files and _can_reach(door, s.address)]
        useful.sort(key=lambda source: (not source.files >= files, sent.get(source.address, 0)))
        chosen[door] = tuple(useful)
        if useful:
            sent[useful[0].address] = sent.get(useful[0].address, 0) + 1
    return chosen


def streams(sources: Sequence[FileSource], count: int) -> tuple[list[FileSource], list[FileSource]]:
    """Which source each of so many connections goes to, and who is left to replace one that fails."""
    if not sources:
        return [], []
    return [sources[number % len(sources)] for number in range(count)], list(sources[count:])


def lacking(files: Iterable[str], sources: Iterable[FileSource]) -> list[str]:
    """Files that no source has."""
    there = {name for source in sources for name in source.files}
    return [name for name in files if name not in there]


def _can_reach(door: str, address: str) -> bool:
    """An address that only means something on its own machine is for doors of that machine."""
    return not _is_loopback(address) or _is_loopback(door)


def _is_loopback(address: str) -> bool:
    host = split_member(address)[1].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
