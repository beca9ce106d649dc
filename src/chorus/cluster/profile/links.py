"""Which addresses of another node work from here, and how many bytes per second come from each, asked at its door."""

from __future__ import annotations

import concurrent.futures
import math
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from chorus.cluster.transfer.share import FILES, PROBE_BYTES
from chorus.errors import ChorusError
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.network.links import KINDS, Address, Kind
from chorus.security import handshake
from chorus.security.identity import Identity, NotTrusted
from chorus.security.meet import meet

FIRST_PROBE_BYTES = 256 << 10
PROBE_SECONDS = 0.05
"""An answer that took so long is believed: slow links are measured with few bytes, fast ones with more."""
REACH_SECONDS = 3.0
"""How long an address may take to answer."""
LATER_SECONDS = 1.0
"""How much later than the first one: what is slower than that is not the quickest way."""
_ROUND_TRIPS = 3
_PIECE = 1 << 20


Door = tuple[str, int]


class LinkError(ChorusError):
    """The other node could not be measured: its address and why."""


@dataclass(frozen=True)
class Probe:
    """What became of one address of a node."""

    problem: str = ""
    """Why nobody is reached there; empty: they are."""
    own_ip: str = ""
    """Which of our own addresses leads there."""
    round_trip: float = 0.0
    bandwidth: float | None = None
    """Bytes per second; None where nobody measured."""


def bits(bandwidth: float) -> str:
    """A bandwidth as cables are sold."""
    rate = bandwidth * 8
    return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


def address_of(entry: wire.NodeAddress) -> Address:
    """As a node told it."""
    kind: Kind = next((kind for kind in KINDS if kind == entry.kind), "")
    return Address(entry.ip[:64], entry.interface[:64], kind, entry.bits_per_second)


def probe_of(entry: wire.ProbedAddress) -> Probe:
    """As the node told it that tried."""
    bandwidth = entry.bytes_per_second
    return Probe(
        entry.problem[:200],
        entry.own_ip[:64],
        entry.round_trip_seconds if math.isfinite(entry.round_trip_seconds) else 0.0,
        bandwidth if math.isfinite(bandwidth) and bandwidth > 0 else None,
    )


def reach_member(addresses: Sequence[Door], node_id: str, identity: Identity) -> list[Probe]:
    """Try all addresses of a member at once: whether it is there, and how soon it answers."""
    pool = ThreadPoolExecutor(max(1, len(addresses)), thread_name_prefix="reach")
    asked = [pool.submit(_reach, address, node_id, identity) for address in addresses]
    try:
        waiting, until = set(asked), time.monotonic() + REACH_SECONDS
        while waiting and (left := until - time.monotonic()) > 0:
            done, waiting = concurrent.futures.wait(waiting, left, concurrent.futures.FIRST_COMPLETED)
            if any(not answer.result().problem for answer in done):
                until = min(until, time.monotonic() + LATER_SECONDS)
        return [_answer(answer) for answer in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(asked: Future[Probe]) -> Probe:
    return asked.result() if asked.done() else Probe("no answer")


def _reach(address: Door, node_id: str, identity: Identity) -> Probe:
    try:
        with meet(address, identity, FILES, REACH_SECONDS, node_id) as (connection, _):
            seconds = min(_round_trip(connection) for _ in range(_ROUND_TRIPS))
            return Probe("", str(connection.getsockname()[0]), seconds)
    except TimeoutError:
        return Probe("no answer")
    except (OSError, handshake.JoinRefused, NotTrusted) as error:
        return Probe(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _round_trip(connection: socket.socket) -> float:
    begin = time.perf_counter()
    handshake.send(connection, {"probe": 1})
    _discard(connection, 1)
    return time.perf_counter() - begin


def measure_all(addresses: Sequence[Door], node_id: str, identity: Identity) -> list[Probe]:
    """Measure addresses that work, one after the other, so that none takes bytes from another's wire."""

    def measured(address: Door) -> Probe:
        try:
            return Probe(bandwidth=measure_member(address, node_id, identity))
        except LinkError as error:
            return Probe(str(error))

    return [measured(address) for address in addresses]


def measure_member(address: Door, node_id: str, identity: Identity, timeout: float = 10.0) -> float:
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
