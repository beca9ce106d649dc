"""What a key is and which addresses ask for one. Commands use this too, so it needs no web framework."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

_PREFIX = "chorus-"


class ApiKey(BaseModel):
    """Only the hash of a key is kept. Keys are long and random, so a plain SHA-256 cannot be searched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


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
