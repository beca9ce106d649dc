"""The secret that lets a node into a cluster. It is proved, never sent; everything derived from it goes one way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field, replace

from chorus.errors import ChorusError

PREFIX = "chorus2"
NAMELESS_PREFIX = "chorus1"
"""Of tokens that do not say whose they are: whoever knows one could pose as the authority to a node that joins."""
SECRET_BYTES = 20
AUTHORITY_BYTES = 16
_CHECK_LENGTH = 4


class BadToken(ChorusError, ValueError):
    """Not a token of ours: says what it looks like and what to do."""


@dataclass(frozen=True)
class Token:
    secret: bytes = field(repr=False)
    authority: str = ""
    """The fingerprint of the key that signs this cluster's certificates; empty where the token does not say."""

    @classmethod
    def new(cls) -> Token:
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Token:
        prefix, _, rest = text.strip().lower().partition("-")
        body, _, check = rest.partition("-")
        lengths = {PREFIX: SECRET_BYTES + AUTHORITY_BYTES, NAMELESS_PREFIX: SECRET_BYTES}
        if prefix not in lengths:
            raise BadToken(_foreign(text.strip()))
        try:
            content = base64.b32decode(body.upper() + "=" * (-len(body) % 8))
        except ValueError:
            content = b""
        if len(content) != lengths[prefix] or check != _check(content):
            raise BadToken("the token is incomplete or mistyped: copy it again from `chorus token show`")
        return cls(content[:SECRET_BYTES], content[SECRET_BYTES:].hex())

    def naming(self, authority: str) -> Token:
        return replace(self, authority=authority)

    @property
    def text(self) -> str:
        content = self.secret + bytes.fromhex(self.authority)
        body = base64.b32encode(content).decode().lower().rstrip("=")
        return f"{PREFIX if self.authority else NAMELESS_PREFIX}-{body}-{_check(content)}"

    @property
    def tag(self) -> str:
        """Public: lets the two sides of one token find each other in announcements."""
        return self._derive("tag").hex()[:16]

    @property
    def key(self) -> bytes:
        return self._derive("join")

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"chorus token {purpose}".encode(), hashlib.sha256)


def _check(content: bytes) -> str:
    return base64.b32encode(hashlib.sha256(b"check" + content).digest()).decode().lower()[:_CHECK_LENGTH]


def _foreign(text: str) -> str:
    if is_localai_token(text):
        return (
            "this is a token of LocalAI's own p2p, which hands over tunnels without a rank 0: "
            "make one with `chorus token new` and use it here, or start `chorus worker mlx-distributed --hostfile`"
        )
    return f"a token starts with {PREFIX}-: make one with `chorus token new` on the first machine"


def is_localai_token(text: str) -> bool:
    """Theirs is base64 of a YAML document that names a one-time-password scheme and a room."""
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except ValueError:
        return False
    return "otp:" in decoded or "room:" in decoded or "rendezvous:" in decoded
