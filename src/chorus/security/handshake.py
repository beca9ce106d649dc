"""How a node proves that it knows the token, and gets its certificate, over one TLS connection.

Neither side sends the token. Each proves it by a keyed hash over both fresh nonces and the certificate of the listening
side: a proof made for one connection is worth nothing on another, and somebody in the middle, who must show another
certificate, breaks both proofs. The dialler proves first, so a listener tells strangers nothing.

Either side may be the authority: a coordinator dials agents it has found, and an agent dials a coordinator it was told.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chorus.errors import ChorusError

PROTOCOL = "chorus-join/1"
NONCE_BYTES = 32
MAX_FRAME = 64 << 10
_LENGTH = struct.Struct(">I")

Message = Mapping[str, Any]


class JoinRefused(ChorusError):
    """The other side does not know our token, or does not keep to the protocol."""


@dataclass(frozen=True)
class Transcript:
    """What both proofs cover."""

    certificate: bytes
    dialler_nonce: bytes
    listener_nonce: bytes

    def proof(self, key: bytes, side: str) -> bytes:
        fields = (PROTOCOL.encode(), side.encode(), hashlib.sha256(self.certificate).digest())
        message = b"".join(struct.pack(">H", len(f)) + f for f in (*fields, self.dialler_nonce, self.listener_nonce))
        return hmac.digest(key, message, hashlib.sha256)


def dial(connection: ssl.SSLSocket, key: bytes) -> None:
    """Prove ourselves to a listener and check its own proof; raises JoinRefused."""
    certificate = connection.getpeercert(binary_form=True)
    if not certificate:
        raise JoinRefused("the other side shows no certificate")
    mine = secrets.token_bytes(NONCE_BYTES)
    send(connection, {"nonce": mine.hex()})
    theirs = _nonce(receive(connection))
    transcript = Transcript(certificate, mine, theirs)
    send(connection, {"proof": transcript.proof(key, "dialler").hex()})
    _check(receive(connection), transcript.proof(key, "listener"))


def answer(connection: ssl.SSLSocket, certificate: bytes, keys: Mapping[str, bytes]) -> str:
    """The listener's part. `keys` has the tokens that open this door, by name; answers which one was proved."""
    theirs = _nonce(receive(connection))
    mine = secrets.token_bytes(NONCE_BYTES)
    send(connection, {"nonce": mine.hex()})
    transcript = Transcript(certificate, theirs, mine)
    claim = _hex(receive(connection), "proof")
    proved = [name for name, key in keys.items() if hmac.compare_digest(claim, transcript.proof(key, "dialler"))]
    if not proved:
        raise JoinRefused("wrong token")
    send(connection, {"proof": transcript.proof(keys[proved[0]], "listener").hex()})
    return proved[0]


def send(connection: socket.socket, message: Message) -> None:
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Message:
    """A whole message within the connection's timeout: one that comes byte by byte gains nothing."""
    timeout = connection.gettimeout()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        length = _length(_exactly(connection, _LENGTH.size, deadline))
        return _parsed(_exactly(connection, length, deadline))
    finally:
        connection.settimeout(timeout)


async def read(stream: asyncio.StreamReader) -> Message:
    """The same from a stream; for how long is the caller's to say."""
    try:
        return _parsed(await stream.readexactly(_length(await stream.readexactly(_LENGTH.size))))
    except asyncio.IncompleteReadError:
        raise JoinRefused("the other side closed the connection") from None


def _length(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME:
        raise JoinRefused(f"a message of {length} bytes, at most {MAX_FRAME} are allowed")
    return int(length)


def _parsed(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise JoinRefused("a message that is no JSON") from None
    if not isinstance(message, dict):
        raise JoinRefused("a message that is no JSON object")
    return message


def _exactly(connection: socket.socket, length: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(length - len(parts))
        if not part:
            raise JoinRefused("the other side closed the connection")
        parts += part
    return bytes(parts)


def _nonce(message: Message) -> bytes:
    nonce = _hex(message, "nonce")
    if len(nonce) != NONCE_BYTES:
        raise JoinRefused("a nonce of the wrong length")
    return nonce


def _check(message: Message, expected: bytes) -> None:
    if not hmac.compare_digest(_hex(message, "proof"), expected):
        raise JoinRefused("the other side does not know our token")


def _hex(message: Message, name: str) -> bytes:
    try:
        return bytes.fromhex(message[name])
    except (KeyError, TypeError, ValueError):
        raise JoinRefused(f"a message without {name}") from None
