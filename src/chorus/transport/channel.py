"""gRPC channels and servers as Chorus wants them: large messages, no proxies, keep-alive, TLS when given."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

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
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    if credentials:
        return grpc.secure_channel(address, credentials, OPTIONS)
    return grpc.insecure_channel(address, OPTIONS)


def open_server(
    address: str, threads: int, credentials: grpc.ServerCredentials | None = None
) -> tuple[grpc.Server, str]:
    """A server bound to `address` (not started yet), and the address with the port it really has."""
    server = grpc.server(ThreadPoolExecutor(threads, thread_name_prefix="rank-service"), options=OPTIONS)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: is another process using it? choose another port") from error
    return server, address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
