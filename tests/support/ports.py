"""Ports for servers that a test starts later, or starts again: nobody else is given them meanwhile.

A port that the kernel has picked for us and that we let go of is anybody's: of the next process that asks for one, or
of an outgoing connection. So these come from outside the range that the kernel picks from, and no two callers of a
test run get the same one.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST, LAST = 1024, 65535
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_RANGE = (49152, 65535)
"""What systems without that file pick from, macOS among them."""
MOST = 16_000
"""Far from the well-known ports, where there is a choice."""


def outside(picked: tuple[int, int]) -> range:
    """The ports that the kernel never picks, next to those that it does: the larger side of them."""
    low, high = picked
    below, above = range(max(FIRST, low - MOST), low), range(high + 1, LAST + 1)
    return max(below, above, key=len)


def share(ports: range, worker: int, workers: int) -> range:
    """One worker's own part of them."""
    size = len(ports) // workers
    return ports[worker * size : (worker + 1) * size]


def picked_by_kernel() -> tuple[int, int]:
    try:
        low, high = map(int, RANGE_FILE.read_text().split())
    except OSError:
        return USUAL_RANGE
    return low, high


def _candidates() -> Iterator[int]:
    number = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = share(outside(picked_by_kernel()), int(number[0]) if number else 0, workers)
    # Not from the beginning: another run of these tests may be using the machine.
    start = random.SystemRandom().randrange(len(own))
    return itertools.cycle([*own[start:], *own[:start]])


_next = _candidates()


def is_free(port: int) -> bool:
    """On every address, and with no connection of old lingering: somebody may bind it without any option."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def port_block(size: int) -> int:
    """The first of several free ports in a row."""
    for _ in range(MOST):
        first = next(_next)
        ports = [first, *itertools.islice(_next, size - 1)]
        if ports == list(range(first, first + size)) and all(map(is_free, ports)):
            return first
    raise RuntimeError(f"there are no {size} free ports in a row on this machine")


def listening_port() -> int:
    return port_block(1)


def listening_ports(count: int) -> list[int]:
    return [listening_port() for _ in range(count)]
