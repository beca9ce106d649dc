"""Dialling a door: who is there is what its certificate says."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

from chorus.security.identity import Identity
from chorus.security.member import Member
from chorus.security.names import server_name

CONNECT_SECONDS = 4.0
"""A machine that is there takes a connection at once; what comes after may wait for a busy one."""


def connect(
    address: tuple[str, int], context: ssl.SSLContext, timeout: float, name: str | None = None
) -> ssl.SSLSocket:
    plain = socket.create_connection(address, min(timeout, CONNECT_SECONDS))
    try:
        plain.settimeout(timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


@contextlib.contextmanager
def meet(
    address: tuple[str, int], identity: Identity, protocol: str, timeout: float, expected: str = ""
) -> Iterator[tuple[ssl.SSLSocket, Member]]:
    """A line to a member: to the one with the `expected` id, or, where nobody knows who is there, to whoever it proves
    to be. Raises NotTrusted for the expelled; a member that is expelled meanwhile finds the line closed.
    """
    name = server_name(expected) if expected else None
    with connect(address, identity.client_context([protocol], named=bool(expected)), timeout, name) as connection:
        member = identity.check_peer(connection)
        with identity.lines.held(member.node_id, lambda: connection.shutdown(socket.SHUT_RDWR)):
            yield connection, member
