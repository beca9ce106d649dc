"""Latency and bandwidth between two nodes, measured over TCP.

Between members of a cluster a node's door answers (`measure_member`). Before there is one, one side answers
(`LinkProbe`) and the other asks (`measure_link`): an exchange is one command byte and its length; small echoes give the
latency, one long transfer the bandwidth. Everything is bounded in bytes and in time.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass

from chorus.cluster.transfer.share import FILES, PROBE_BYTES
from chorus.planning.costs import LinkSpeed
from chorus.security import handshake
from chorus.security.identity import Identity
from chorus.security.meet import meet
from chorus.transport import catalog

ECHOES = 50
TRANSFER_BYTES = 16 << 20
MOST_BYTES = 256 << 20
FIRST_PROBE_BYTES = 256 << 10
PROBE_SECONDS = 0.05
"""An answer that took so long is believed: slow links are measured with few bytes, fast ones with more."""
_HEADER = struct.Struct("<cQ")
_PIECE = 1 << 20


class LinkError(Exception):
    """The other node could not be measured: its address and why."""


@dataclass(frozen=True)
class LinkFigures:
    latency: float
    """Seconds, one way."""
    bandwidth: float

    def link(self, transport: str = catalog.DEFAULT, collective: str | None = None) -> LinkSpeed:
        """As the planner sees it over one transport, and over one kind of collective where there is any."""
        call = catalog.get(transport).call_seconds or 0.0
        added = None if collective is None else catalog.get(collective).sum_seconds
        return LinkSpeed(self.latency + call, self.bandwidth, None if added is None else self.latency + added)


class LinkProbe:
    """Answers on a port until closed."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._listener = socket.create_server((host, port))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="link-probe", daemon=True)
        self._thread.start()

    def __enter__(self) -> LinkProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not connected, on some systems; it ends the accept all the same
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(self._timeout)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the asker notices; there is nobody else to tell
            connection.settimeout(self._timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while header := _receive(connection, _HEADER.size):
                command, length = _HEADER.unpack(header)
                if command not in (b"e", b"t") or length > MOST_BYTES:
                    return
                remaining = length
                while remaining:
                    remaining -= len(_receive(connection, min(_PIECE, remaining)) or _lost())
                connection.sendall(header)


def measure_link(host: str, port: int, timeout: float = 10.0, nbytes: int = TRANSFER_BYTES) -> LinkFigures:
    """Ask the LinkProbe at an address. `timeout` bounds each wait."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = [_exchange(connection, b"e", 0) for _ in range(ECHOES)]
            latency = statistics.median(trips) / 2
            seconds = _exchange(connection, b"t", nbytes) - 2 * latency
    except OSError as error:
        raise LinkError(f"cannot measure the link to {host}:{port}: {error}; is it up and its port open?") from error
    return LinkFigures(latency, nbytes / max(seconds, 1e-9))


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
        length -= connection.recv_into(buffer[: min(length, _PIECE)]) or len(_lost())


def _exchange(connection: socket.socket, command: bytes, length: int) -> float:
    header = _HEADER.pack(command, length)
    begin = time.perf_counter()
    connection.sendall(header)
    piece = bytes(min(_PIECE, length))
    for start in range(0, length, _PIECE):
        connection.sendall(piece[: length - start])
    if _receive(connection, _HEADER.size) != header:
        _lost()
    return time.perf_counter() - begin


def _receive(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; none when the other side has ended."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _lost() -> bytes:
    raise ConnectionResetError("the connection ended in the middle")
