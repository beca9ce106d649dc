"""A member's files as anybody who has them can use them: plain TLS, and nothing of Chorus."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

CARDS = "chorus-card/1"
FILES = "chorus-files/1"
SECONDS = 120.0


def tls(identity: Path | None, protocol: str, highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = highest
    context.set_alpn_protocols([protocol])
    if identity:
        context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    return context


def dial(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), SECONDS)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def card_of(port: int, identity: Path) -> dict[str, Any] | None:
    """What a door tells the holder of this certificate; None where it hangs up."""
    try:
        with dial(port, tls(identity, CARDS)) as connection:
            stream = connection.makefile("rb")
            header = stream.read(4)
            found: dict[str, Any] = json.loads(stream.read(struct.unpack(">I", header)[0]))
            return found
    except (OSError, struct.error):
        return None


def gives_files(port: int, identity: Path) -> bool:
    """Whether a door sends the holder of this certificate bytes of the kind that files are."""
    request = json.dumps({"probe": 10}).encode()
    try:
        with dial(port, tls(identity, FILES)) as connection:
            connection.sendall(struct.pack(">I", len(request)) + request)
            return len(connection.makefile("rb").read(10)) == 10
    except OSError:
        return False
