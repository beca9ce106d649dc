"""How many bytes per second come from another node, measured at its door."""

from __future__ import annotations

import socket
import time

from chorus.cluster.transfer.share import FILES, PROBE_BYTES
from chorus.errors import ChorusError
from chorus.security import handshake
from chorus.security.identity import Identity
from chorus.security.meet import meet

FIRST_PROBE_BYTES = 256 << 10
PROBE_SECONDS = 0.05
"""An answer that took so long is believed: slow links are measured with few bytes, fast ones with more."""
_PIECE = 1 << 20


class LinkError(ChorusError):
    """The other node could not be measured: its address and why."""


def measure_member(address: tuple[str, int], node_id: str, identity: Identity, timeout: float = 10.0) -> float:
    """Bytes per second that come from a member's door, as model files would: over TLS, with its real cost.

    Ever larger answers are asked for, until one takes long enough to be believed; the last one counts.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        with meet(address, identity, FILES, timeout, node_id) as (connection, _):
            length = FIRST_PROBE_BYTES
            while True:
                begin = time.perf_counter()
                handshake.send(connection, {"probe": length})
                _discard(connection, length)
                seconds = time.perf_counter() - begin
                if seconds >= PROBE_SECONDS or length >= PROBE_BYTES:
                    return length / max(seconds, 1e-9)
                length = min(length * 4, PROBE_BYTES)
    except (OSError, handshake.JoinRefused) as error:
        raise LinkError(f"cannot measure the link to {where}: {error}; is it up and its port open?") from error


def _discard(connection: socket.socket, length: int) -> None:
    buffer = memoryview(bytearray(_PIECE))
    while length:
        received = connection.recv_into(buffer[: min(length, _PIECE)])
        if not received:
            raise ConnectionResetError("the connection ended in the middle")
        length -= received
