"""Calling cards between members: who is there, and, for whoever stays connected, that they still are.

With its card each gives the list of expelled nodes, so that a member which was away learns it from the first it meets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.security import handshake
from chorus.security.enrol import TIMEOUT_SECONDS, Card
from chorus.security.expelled import BadList
from chorus.security.identity import Identity
from chorus.security.meet import meet
from chorus.security.member import Member

log = logging.getLogger("chorus.agent")

CARDS = "chorus-card/1"
"""The name of this protocol in a TLS handshake."""
_HEARTBEAT = "heartbeat_seconds"
"""How often the door wants to hear from whoever stays, in its first message."""


@dataclass(frozen=True)
class Met:
    """A member that answered."""

    member: Member
    card: Card
    own_ip: str
    """Which of our own addresses leads there."""
    ip: str
    """The address at which it answered, whatever name was dialled: gRPC's resolver knows no .local names."""


class Registry:
    """The members that are connected now, by the address of their door."""

    def __init__(self, own: Callable[[], tuple[Card, Identity]], timing: WatchTimes) -> None:
        self._own = own
        self._timing = timing
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}

    def addresses(self) -> list[str]:
        with self._lock:
            return sorted(self._addresses)

    def serve(self, connection: ssl.SSLSocket, host: str, member: Member) -> None:
        """The door's side: give our card; when a card comes back, the caller is a peer until it hangs up."""
        card, identity = self._own()
        heartbeat = {_HEARTBEAT: self._timing.peer_heartbeat_seconds}
        handshake.send(connection, {**_message(card, identity), **heartbeat})
        connection.settimeout(self._timing.peer_silence_seconds)
        try:
            theirs = _card(handshake.receive(connection), identity)
        except handshake.JoinRefused:
            return  # it only asked
        with self._present(f"{host}:{theirs.door_port}"):
            log.info("%s is connected from %s", member.name, host)
            with contextlib.suppress(handshake.JoinRefused, OSError):
                while True:
                    handshake.receive(connection)
        log.info("%s has disconnected", member.name)

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


async def ask(address: tuple[str, int], identity: Identity) -> Met:
    """Ask who is behind a door. Holds no thread: a coordinator asks wherever a node might be."""
    context = identity.client_context([CARDS], named=False)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        # Doors and MLX's groups are IPv4.
        stream, writer = await asyncio.open_connection(*address, ssl=context, family=socket.AF_INET)
        try:
            member = identity.check_peer(writer.get_extra_info("ssl_object"))
            card = _card(await handshake.read(stream), identity)
            ends = (str(writer.get_extra_info(name)[0]) for name in ("sockname", "peername"))
            return Met(member, card, *ends)
        finally:
            writer.close()


def stay(address: tuple[str, int], identity: Identity, own: Card, stop: threading.Event) -> None:
    """Be a peer of that node until the connection breaks or we stop."""
    with meet(address, identity, CARDS, TIMEOUT_SECONDS) as (connection, member):
        theirs = handshake.receive(connection)
        _card(theirs, identity)
        handshake.send(connection, _message(own, identity))
        log.info("connected to %s at %s:%d", member.name, *address)
        while not stop.wait(_heartbeat_seconds(theirs)):
            handshake.send(connection, {"alive": True})


def _heartbeat_seconds(message: handshake.Message) -> float:
    told = message.get(_HEARTBEAT)
    return float(told) if isinstance(told, int | float) and told > 0 else DEFAULTS.peer_heartbeat_seconds


def _message(card: Card, identity: Identity) -> handshake.Message:
    return {**card.message(), "expelled": identity.expelled_list()}


def _card(message: handshake.Message, identity: Identity) -> Card:
    try:
        identity.update_expelled(str(message.get("expelled", "")))
    except BadList as error:
        raise handshake.JoinRefused(str(error)) from None
    return Card.of(message)
