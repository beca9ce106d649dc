"""The one port where strangers may knock: joining by token, and, for members, calling cards and model files.

Plain sockets and threads, since a stranger must see nothing but a closed connection, and files must travel at the speed
of the disk. What a connection is for is told by the TLS handshake itself (ALPN). Whoever has shown no certificate has
little time and shares few places, of which the oldest goes to the next that knocks: strangers only push out each other.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping

from chorus.errors import CannotListen
from chorus.security import handshake
from chorus.security.identity import Identity
from chorus.security.member import Member, NotTrusted

log = logging.getLogger("chorus.trust")

STRANGER_SECONDS = 20.0
"""How long a stranger may take for the handshake, and for all of joining."""
MAX_STRANGERS = 64
MAX_MEMBERS = 256
_LOOK_SECONDS = 1.0
"""How late a stranger may be sent away, where nobody else knocks."""

StrangerHandler = Callable[[ssl.SSLSocket, str], None]
"""Called with the connection and the host it comes from."""
MemberHandler = Callable[[ssl.SSLSocket, str, Member], None]


class AgentDoor:
    """Listens from the start; what it lets in depends on the context and handlers in force at the moment."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = socket.create_server((host, port), backlog=1024)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {host}:{port} ({error.strerror}): is another agent running? choose another --listen"
            ) from error
        # The thread that accepts also sends away strangers whose time is up.
        self._listener.settimeout(_LOOK_SECONDS)
        self.host = host
        self.port = int(self._listener.getsockname()[1])
        self._context: ssl.SSLContext | None = None
        self._identity: Identity | None = None
        self._on_join: StrangerHandler | None = None
        self._members: Mapping[str, MemberHandler] = {}
        self._strangers: dict[socket.socket, float] = {}
        """Connections of strangers and since when each is there, the oldest first."""
        self._known: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
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
        """Begin to take connections; does nothing where it has begun."""
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in (*self._strangers, *self._known):
                _hang_up(connection)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                plain, address = self._listener.accept()
            except TimeoutError:
                self._send_away(time.monotonic() - STRANGER_SECONDS)
                continue
            except OSError:
                if self._closed.is_set():
                    return
                log.exception("the door cannot take a connection")
                self._closed.wait(0.5)  # out of descriptors: others must end before it is worth trying again
                continue
            self._make_room()
            with self._lock:
                self._strangers[plain] = time.monotonic()
            serve = threading.Thread(target=self._serve, args=(plain, str(address[0])), name="door", daemon=True)
            try:
                serve.start()
            except RuntimeError:  # out of threads
                log.warning("refused %s: this machine can start no more threads", address[0])
                self._leave(plain)

    def _make_room(self) -> None:
        now = time.monotonic()
        self._send_away(now - STRANGER_SECONDS)
        with self._lock:
            oldest = next(iter(self._strangers), None) if len(self._strangers) >= MAX_STRANGERS else None
            since = self._strangers.pop(oldest) if oldest else now
        if oldest:
            log.debug("a stranger that was silent for %.1f s makes room for the next", now - since)
            _hang_up(oldest)

    def _send_away(self, before: float) -> None:
        with self._lock:
            late = [connection for connection, since in self._strangers.items() if since < before]
            for connection in late:
                del self._strangers[connection]
        for connection in late:
            _hang_up(connection)

    def _serve(self, plain: socket.socket, host: str) -> None:
        connection: socket.socket = plain
        try:
            with self._lock:
                context = self._context
            if context is None:
                return
            plain.settimeout(STRANGER_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = secure = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            self._replace(plain, secure)
            secure.do_handshake()
            self._route(secure, host)
        except (handshake.JoinRefused, NotTrusted) as refusal:
            log.warning("refused %s: %s", host, refusal)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            log.info("%s went away: %s", host, error)
        except (ssl.SSLError, TimeoutError) as error:
            # A coordinator knocks as a member first, which a node without a certificate cannot answer.
            level = logging.WARNING if self._identity else logging.INFO
            log.log(level, "refused %s: %s", host, getattr(error, "reason", None) or error)
        except OSError as error:
            log.info("%s went away: %s", host, error)
        except Exception:
            log.exception("a connection from %s failed", host)
        finally:
            self._leave(connection)

    def _route(self, connection: ssl.SSLSocket, host: str) -> None:
        protocol = connection.selected_alpn_protocol()
        with self._lock:
            identity, on_join, members = self._identity, self._on_join, self._members
        if protocol == handshake.PROTOCOL and on_join:
            on_join(connection, host)
            return
        if identity is None or protocol is None or protocol not in members:
            raise NotTrusted(f"no answer to {protocol or 'an unknown protocol'}")
        member = identity.check_peer(connection)
        self._know(connection, member)
        with identity.lines.held(member.node_id, lambda: connection.shutdown(socket.SHUT_RDWR)):
            members[protocol](connection, host, member)

    def _replace(self, plain: socket.socket, secure: ssl.SSLSocket) -> None:
        """TLS has taken the socket over: the place is now that of the new one, unless it was given away."""
        with self._lock:
            since = self._strangers.pop(plain, None)
            if since is None:
                raise TimeoutError("another stranger has its place")
            self._strangers[secure] = since

    def _know(self, connection: socket.socket, member: Member) -> None:
        with self._lock:
            if len(self._known) >= MAX_MEMBERS:
                raise NotTrusted(f"{member.name}: {MAX_MEMBERS} connections of members are open")
            if self._strangers.pop(connection, None) is None:
                raise TimeoutError("its time was up")
            self._known.add(connection)

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._known.discard(connection)
        connection.close()


def _hang_up(connection: socket.socket) -> None:
    """End a connection; the thread that serves it sees that and closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
