"""What a key is and which addresses ask for one. Commands use this too, so it needs no web framework."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_PREFIX = "chorus-"

Scopes = tuple[Literal["use", "admin"], ...]
USE: Scopes = ("use",)
"""May ask models."""
ADMIN: Scopes = ("admin",)
"""May do that, and what concerns everybody who is served."""

ModelName = Annotated[str, Field(min_length=1, max_length=1024)]


class ApiKey(BaseModel):
    """Only the hash of a key is kept. Keys are long and random, so a plain SHA-256 cannot be searched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)
    scopes: Scopes = Field(default=ADMIN, min_length=1)
    """Keys made before there were scopes could do all there was."""
    models: tuple[ModelName, ...] | None = Field(default=None, min_length=1)
    """The only models it is for, each by any of its names; None: all."""

    @property
    def may_admin(self) -> bool:
        return "admin" in self.scopes


def new_key() -> str:
    """256 random bits: too many to guess, so the hash needs no salt and no slow function."""
    return _PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def needs_keys(host: str) -> bool:
    """Whether an address can be reached from other machines; a name that is no address is taken to be."""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def refusal_to_listen(host: str, keys: Sequence[object], insecure: bool) -> str | None:
    """Why a server must not start on this address, in one line; None where it may."""
    if keys or insecure or not needs_keys(host):
        return None
    return (
        f"{host} can be reached from other machines and no API key is set: make one with `chorus keys new NAME`, "
        "or allow everybody with --insecure"
    )
