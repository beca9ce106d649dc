"""From a proved token to a certificate: the authority signs, the candidate keeps."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chorus import __version__
from chorus.cluster import trust_join
from chorus.cluster.agent_paths import BadName
from chorus.cluster.token import Token
from chorus.cluster.trust import Authority
from chorus.cluster.trust_identity import Identity, make_key, make_request, stranger_client_context
from chorus.cluster.trust_join import JoinRefused, Message

log = logging.getLogger("chorus.trust")

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Card:
    """What a node says about itself to whoever has proved the token or shown a certificate."""

    name: str
    node_id: str
    door_port: int
    control_port: int
    version: str = __version__

    def message(self) -> dict[str, object]:
        return {**vars(self)}

    @classmethod
    def of(cls, message: Message) -> Card:
        try:
            return cls(
                str(message["name"]),
                str(message["node_id"]),
                int(message["door_port"]),
                int(message["control_port"]),
                str(message["version"]),
            )
        except (KeyError, TypeError, ValueError):
            raise JoinRefused("a node that does not say who it is") from None


def connect(
    address: tuple[str, int], context: ssl.SSLContext, timeout: float, server_name: str | None
) -> ssl.SSLSocket:
    plain = socket.create_connection(address, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = context.wrap_socket(plain, server_hostname=server_name)
    except BaseException:
        plain.close()
        raise
    connection.settimeout(timeout)
    return connection


def dial_as_authority(address: tuple[str, int], authority: Authority) -> Card:
    """Take in a candidate that is waiting there."""
    with connect(address, stranger_client_context([trust_join.PROTOCOL]), TIMEOUT_SECONDS, None) as connection:
        trust_join.dial(connection, authority.token.key)
        return admit(connection, authority)


def dial_as_candidate(address: tuple[str, int], token: Token, folder: Path, card: Card) -> Identity:
    """Ask the authority there for a certificate."""
    with connect(address, stranger_client_context([trust_join.PROTOCOL]), TIMEOUT_SECONDS, None) as connection:
        trust_join.dial(connection, token.key)
        return apply(connection, token, folder, card)


def admit(connection: ssl.SSLSocket, authority: Authority) -> Card:
    """The authority's part after the proofs."""
    trust_join.send(connection, {"kind": "authority"})
    application = trust_join.receive(connection)
    if application.get("kind") != "candidate":
        raise JoinRefused("both sides hold an authority: one machine makes the token, the others only use it")
    card = Card.of(application)
    try:
        certificate = authority.sign(str(application.get("request")).encode(), card.name, card.node_id)
    except (BadName, ValueError) as error:
        raise JoinRefused(f"{card.name} cannot be given a certificate: {error}") from None
    trust_join.send(
        connection,
        {
            "certificate": certificate.decode(),
            "authority": authority.certificate_pem.decode(),
            "revoked": sorted(authority.revoked()),
        },
    )
    if trust_join.receive(connection).get("stored") is not True:
        raise JoinRefused(f"{card.name} did not keep its certificate")
    log.info("%s (%s) joined the cluster", card.name, card.node_id)
    return card


def apply(connection: ssl.SSLSocket, token: Token, folder: Path, card: Card) -> Identity:
    """The candidate's part after the proofs."""
    if trust_join.receive(connection).get("kind") != "authority":
        raise JoinRefused("the other side holds no authority: name the machine that made the token")
    key = make_key()
    request = make_request(key, card.name).decode()
    trust_join.send(connection, {"kind": "candidate", "request": request, **card.message()})
    grant = trust_join.receive(connection)
    certificate, authority, revoked = grant.get("certificate"), grant.get("authority"), grant.get("revoked")
    if not (isinstance(certificate, str) and isinstance(authority, str) and isinstance(revoked, list)):
        raise JoinRefused("the authority sent no certificate")
    identity = Identity.store(
        folder, key, certificate.encode(), authority.encode(), frozenset(map(str, revoked)), token.tag
    )
    trust_join.send(connection, {"stored": True})
    return identity


Admitted = Callable[[Card, str], None]
"""A node has joined: its card and the host it came from."""
