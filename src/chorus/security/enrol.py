"""From a proved token to a certificate: the authority signs, the candidate keeps."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from chorus import __version__
from chorus.messages.protocol import PROTOCOL
from chorus.security import handshake
from chorus.security.authority import Authority, requested_name
from chorus.security.expelled import BadList
from chorus.security.handshake import JoinRefused, Message
from chorus.security.identity import Identity, fingerprint, make_request, member_of, own_key, stranger_client_context
from chorus.security.meet import connect
from chorus.security.member import Member, NotTrusted
from chorus.security.token import Token

log = logging.getLogger("chorus.trust")

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Card:
    """What a node says about itself; who it is stands in its certificate."""

    door_port: int
    control_port: int
    version: str = __version__
    protocol: int = PROTOCOL
    """0: a release that did not name one."""

    def message(self) -> dict[str, object]:
        return {**vars(self)}

    @classmethod
    def of(cls, message: Message) -> Card:
        ports = _port(message, "door_port"), _port(message, "control_port")
        protocol = message.get("protocol")
        return cls(*ports, str(message.get("version"))[:64], protocol if isinstance(protocol, int) else 0)


def _port(message: Message, name: str) -> int:
    port = message.get(name)
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise JoinRefused("a node that does not say where it is")
    return port


def dial_as_authority(address: tuple[str, int], authority: Authority) -> Member:
    """Take in a candidate that is waiting there."""
    with connect(address, stranger_client_context([handshake.PROTOCOL]), TIMEOUT_SECONDS) as connection:
        handshake.dial(connection, authority.token.key)
        return admit(connection, authority)


def dial_as_candidate(address: tuple[str, int], token: Token, folder: Path, name: str) -> Identity:
    """Ask the authority there for a certificate."""
    with connect(address, stranger_client_context([handshake.PROTOCOL]), TIMEOUT_SECONDS) as connection:
        handshake.dial(connection, token.key)
        return apply(connection, token, folder, name)


def admit(connection: ssl.SSLSocket, authority: Authority) -> Member:
    """The authority's part after the proofs."""
    handshake.send(connection, {"kind": "authority"})
    application = handshake.receive(connection)
    if application.get("kind") != "candidate":
        raise JoinRefused("both sides hold an authority: one machine makes the token, the others only use it")
    request = str(application.get("request")).encode()
    try:
        certificate = authority.sign(request, requested_name(request))
    except (NotTrusted, ValueError) as error:
        raise JoinRefused(f"no certificate for a candidate: {error}") from None
    handshake.send(
        connection,
        {
            "certificate": certificate.decode(),
            "authority": authority.certificate_pem.decode(),
            "expelled": authority.expelled_list(),
        },
    )
    member = member_of(certificate)
    if handshake.receive(connection).get("stored") is not True:
        raise JoinRefused(f"{member.name} did not keep its certificate")
    log.info("%s (%s) joined the cluster", member.name, member.node_id)
    return member


def apply(connection: ssl.SSLSocket, token: Token, folder: Path, name: str) -> Identity:
    """The candidate's part after the proofs. The token says whose authority to believe: others know the token too."""
    if handshake.receive(connection).get("kind") != "authority":
        raise JoinRefused("the other side holds no authority: name the machine that made the token")
    request = make_request(own_key(folder), name).decode()
    handshake.send(connection, {"kind": "candidate", "request": request})
    grant = handshake.receive(connection)
    certificate, authority, expelled = (grant.get(key) for key in ("certificate", "authority", "expelled"))
    if not (isinstance(certificate, str) and isinstance(authority, str) and isinstance(expelled, str)):
        raise JoinRefused("the authority sent no certificate")
    try:
        signer = fingerprint(x509.load_pem_x509_certificate(authority.encode()).public_key())
        if token.authority not in ("", signer):
            raise JoinRefused("it knows the token and is not the authority that the token names: somebody poses as it")
        identity = Identity.store(folder, certificate.encode(), authority.encode(), expelled, token.tag)
    except (NotTrusted, BadList, ValueError) as error:
        raise JoinRefused(f"the authority sent what is of no use: {error}") from None
    handshake.send(connection, {"stored": True})
    return identity
