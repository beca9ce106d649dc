"""Whether a port is free, asked so that no system's rules about shared addresses give a wrong answer.

On BSD and macOS a socket with SO_REUSEADDR may be bound to all addresses while another listens on one of them, so that
binding alone proves nothing. Without SO_REUSEADDR a port seems taken for a minute after its server has ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import psutil

ANSWER_SECONDS = 0.5
"""The addresses are our own: whoever listens there answers at once."""


def free_port(host: str, port: int = 0) -> int | None:
    """The port, or any for 0, if a server could listen there and nobody does; None otherwise."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as probe:
            found = int(probe.getsockname()[1])
    except OSError:
        return None
    return None if port and answers(_ways_to(host), port) else found


def answers(addresses: list[str], port: int) -> bool:
    """Whether anybody listens there on one of these addresses of this machine."""
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection((address, port), ANSWER_SECONDS):
            return True
    return False


def _ways_to(host: str) -> list[str]:
    """The addresses at which a listener would be in the way of one on this host."""
    try:
        wildcard = not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        wildcard = False
    if not wildcard:
        return [host]
    own = [each.address for found in psutil.net_if_addrs().values() for each in found if each.family == socket.AF_INET]
    return list(dict.fromkeys(["127.0.0.1", *own]))
