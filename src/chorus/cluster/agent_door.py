"""The one port where strangers may knock: joining by token, and, for members, calling cards and model files.

Plain sockets and threads, since a stranger must see nothing but a closed connection, and files must travel at the speed
of the disk. What a connection is for is told by the TLS handshake itself (ALPN).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from chorus.cluster import trust_join
from chorus.cluster.trust_identity import Identity, Member, NotTrusted

log = logging.getLogger("chorus.trust")

CARDS = "chorus-card/1"
FILES = "chorus-files/1"
PROTOCOLS = [trust_join.PROTOCOL, CARDS, FILES]
HANDSHAKE_SECONDS = 10.0
MAX_CONNECTIONS = 64

StrangerHandler = Callable[[ssl.SSLSocket, str], None]
"""The connection and the host it comes from."""
MemberHandler = Callable[[ssl.SSLSocket, str, Member], None]


class Door:
    """Listens from the start; what it lets in depends on the context and handlers in force at the moment."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = socket.create_server((host, port), backlog=128)
        except OSError as error:
            raise OSError(
                f"cannot listen on {host}:{port} ({error.strerror}): is another agent running? choose another --listen"
            ) from error
        self.host = host
        self.port = int(self._listener.getsockname()[1])
        self._context: ssl.SSLContext | None = None
        self._identity: Identity | None = None
        self._on_join: StrangerHandler | None = None
        self._members: Mapping[str, MemberHandler] = {}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="door")
        self._thread = threading.Thread(target=self._accept, name="door", daemon=True)

    def set(
        self,
        context: ssl.SSLContext,
        identity: Identity | None,
        on_join: StrangerHandler | None,
        members: Mapping[str, MemberHandler],
    ) -> None:
        with self._lock:
            self._context, self._identity, self._on_join, self._members = context, identity, on_join, members

    def start(self) -> None:
        """Again and again does no harm."""
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                plain, address = self._listener.accept()
            except OSError:
                if self._closed.is_set():
                    return
                log.exception("the door cannot take a connection")
                self._closed.wait(0.5)  # out of descriptors: others must end before it is worth trying again
                continue
            with self._lock:
                if len(self._open) >= MAX_CONNECTIONS:
                    log.warning("refused %s: %d connections are open", address[0], MAX_CONNECTIONS)
                    plain.close()
                    continue
                self._open.add(plain)
            try:
                self._pool.submit(self._serve, plain, str(address[0]))
            except RuntimeError:  # closing
                plain.close()

    def _serve(self, plain: socket.socket, host: str) -> None:
        connection: socket.socket = plain
        try:
            with self._lock:
                context = self._context
            if context is None:
                return
            plain.settimeout(HANDSHAKE_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = secure = context.wrap_socket(plain, server_side=True)
            with self._lock:
                self._open.discard(plain)
                self._open.add(secure)
            self._route(secure, host)
        except (trust_join.JoinRefused, NotTrusted) as refusal:
            log.warning("refused %s: %s", host, refusal)
        except (ssl.SSLError, TimeoutError) as error:
            # A coordinator knocks as a member first, which a node without a certificate cannot answer.
            level = logging.WARNING if self._identity else logging.INFO
            log.log(level, "refused %s: %s", host, getattr(error, "reason", None) or error)
        except OSError as error:
            log.info("%s went away: %s", host, error)
        except Exception:
            log.exception("a connection from %s failed", host)
        finally:
            with self._lock:
                self._open.discard(plain)
                self._open.discard(connection)
            connection.close()

    def _route(self, connection: ssl.SSLSocket, host: str) -> None:
        protocol = connection.selected_alpn_protocol()
        with self._lock:
            identity, on_join, members = self._identity, self._on_join, self._members
        if protocol == trust_join.PROTOCOL and on_join:
            on_join(connection, host)
            return
        certificate = connection.getpeercert(binary_form=True)
        if identity is None or certificate is None or protocol is None or protocol not in members:
            raise NotTrusted(f"no certificate for {protocol or 'an unknown protocol'}")
        member = identity.check(ssl.DER_cert_to_PEM_cert(certificate).encode())
        members[protocol](connection, host, member)
