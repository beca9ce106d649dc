"""Who a member is, in names: its id is a hash of its key, and its certificate is valid for one name made of that id.

An address that says whom to expect there is written ID@HOST:PORT; whoever dials it refuses everybody else.
"""

from __future__ import annotations

_DOMAIN = "chorus"


def server_name(node_id: str) -> str:
    """The one name that a member's certificate is valid for."""
    return f"{node_id}.{_DOMAIN}"


def member_address(node_id: str, host: str, port: int) -> str:
    return f"{node_id}@{host}:{port}"


def split_member(address: str) -> tuple[str, str]:
    """Whom to expect, empty where nobody said, and HOST:PORT (or unix:PATH)."""
    if address.startswith("unix:"):
        return "", address
    node_id, _, place = address.rpartition("@")
    return node_id, place


def located(what: str, address: str) -> str:
    """For people; the socket of a process on this machine tells them nothing."""
    _, place = split_member(address)
    return what if place.startswith("unix:") else f"{what} at {place}"
