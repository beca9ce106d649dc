"""gRPC channels and servers as Chorus wants them: large messages, no proxies, keep-alive, TLS when given."""

from __future__ import annotations

import ipaddress
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from chorus.errors import ChorusError
from chorus.platform.storage.paths import check_socket_path
from chorus.security.guard import MemberGuard
from chorus.security.member import NotTrusted
from chorus.security.names import server_name, split_member
from chorus.transport.security import PRIVATE, Security

if TYPE_CHECKING:
    from chorus.security.identity import Identity

MAX_MESSAGE = 1 << 30
OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # A rank that is started again is back within seconds, and somebody waits for it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


STEERING = ("chorus.rank.v1.Rank",)
"""Services that only a coordinator may call; tensors come from any member."""


class NotPrivate(ChorusError, OSError):
    """An address that others can reach, and nothing that would keep them out."""


def open_channel(address: str, security: Security = PRIVATE) -> grpc.Channel:
    """To HOST:PORT, unix:PATH or, by mutual TLS, to the member of ID@HOST:PORT and nobody else."""
    expected, place = split_member(address)
    if security.identity and not place.startswith("unix:"):
        return _channel_to(expected, place, security.identity)
    _check_private(place, security)
    return grpc.insecure_channel(place, OPTIONS)


def _channel_to(expected: str, place: str, identity: Identity) -> grpc.Channel:
    if not expected:
        raise NotTrusted(f"nobody said which member listens on {place}")
    if expected in identity.expelled():
        raise NotTrusted(f"{expected} at {place} was expelled")
    options = [*OPTIONS, ("grpc.ssl_target_name_override", server_name(expected))]
    channel = grpc.secure_channel(place, identity.channel_credentials(), options)
    line = weakref.ref(channel)
    weakref.finalize(channel, identity.lines.add(expected, lambda: (still := line()) and still.close()))
    return channel


def open_server(address: str, threads: int, security: Security = PRIVATE) -> tuple[grpc.Server, str]:
    """A server bound to `address` (not started yet), and the address with the port it really has."""
    _, address = split_member(address)
    check_socket_path(address)
    identity = None if address.startswith("unix:") else security.identity
    guards = (MemberGuard(identity, STEERING),) if identity else ()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rank-service")
    server = grpc.server(pool, options=OPTIONS, interceptors=guards)
    if not identity:
        _check_private(address, security)
    try:
        if identity:
            port = server.add_secure_port(address, identity.server_credentials())
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: is another process using it? choose another port") from error
    return server, address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _check_private(address: str, security: Security) -> None:
    if not security.plaintext and not is_private(address):
        raise NotPrivate(f"{address} can be reached by others and nothing would keep them out: `chorus join` has TLS")


def is_private(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = split_member(address)[1].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
