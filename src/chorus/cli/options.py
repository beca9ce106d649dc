"""How people write addresses and variables on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from chorus.config.hostfile import split_address
from chorus.security.node_folder import DOOR_PORT


def parse_peer(text: str) -> tuple[str, int]:
    """host or host:port; port 0 is allowed and means any free one."""
    if text.endswith(":0"):
        return split_address(text[:-2])[0], 0
    host, port = split_address(text)
    return host, port or DOOR_PORT


def environment_of(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--env {text}: expected NAME=VALUE")
        found[name] = value
    return found
