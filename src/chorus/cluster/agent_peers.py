"""Calling cards between members: who is there, and, for whoever stays on the line, that they still are."""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Iterator

from chorus.cluster import trust_join
from chorus.cluster.agent_door import CARDS
from chorus.cluster.trust_enrol import TIMEOUT_SECONDS, Card, connect
from chorus.cluster.trust_identity import SERVER_NAME, Identity, Member

log = logging.getLogger("chorus.agent")

ALIVE_SECONDS = 5.0
SILENCE_SECONDS = 20.0


class Registry:
    """The members that are on the line now, by the address of their door."""

    def __init__(self, own: Callable[[], Card]) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}

    def addresses(self) -> list[str]:
        with self._lock:
            return sorted(self._addresses)

    def serve(self, connection: ssl.SSLSocket, host: str, member: Member) -> None:
        """The door's side: give our card; when a card comes back, the caller is a peer until it hangs up."""
        trust_join.send(connection, self._own().message())
        connection.settimeout(SILENCE_SECONDS)
        try:
            card = Card.of(trust_join.receive(connection))
        except trust_join.JoinRefused:
            return  # it only asked
        with self._present(f"{host}:{card.door_port}"):
            log.info("%s is on the line from %s", card.name, host)
            with contextlib.suppress(trust_join.JoinRefused, OSError):
                while True:
                    trust_join.receive(connection)
        log.info("%s hung up", card.name)

    @contextlib.contextmanager
    def _present(self, address: str) -> Iterator[None]:
        with self._lock:
            self._addresses[address] = self._addresses.get(address, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._addresses[address] -= 1
                if not self._addresses[address]:
                    del self._addresses[address]


def ask(address: tuple[str, int], identity: Identity) -> tuple[Card, str]:
    """Who is behind that door, and which of our own addresses leads there."""
    with connect(address, identity.client_context([CARDS]), TIMEOUT_SECONDS, SERVER_NAME) as connection:
        card = Card.of(trust_join.receive(connection))
        return card, str(connection.getsockname()[0])


def stay(address: tuple[str, int], identity: Identity, own: Card, stop: threading.Event) -> None:
    """Be a peer of that node until the line breaks or we stop."""
    with connect(address, identity.client_context([CARDS]), TIMEOUT_SECONDS, SERVER_NAME) as connection:
        card = Card.of(trust_join.receive(connection))
        trust_join.send(connection, own.message())
        log.info("on the line to %s at %s:%d", card.name, *address)
        while not stop.wait(ALIVE_SECONDS):
            trust_join.send(connection, {"alive": True})
