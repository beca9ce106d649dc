"""How a process meets others: by mutual TLS, in the open, or not at all beyond its own machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chorus.security.identity import Identity


@dataclass(frozen=True)
class Security:
    identity: Identity | None = None
    """This node's: others are met by mutual TLS."""
    plaintext: bool = False
    """Addresses that others can reach may be used in plain text."""


PRIVATE = Security()
"""Loopback and Unix sockets, and nothing else."""


def security_of(identity: Path | None, plaintext: bool) -> Security:
    """As the process was told: with the folder of a node's identity, or without."""
    if identity is None:
        return Security(plaintext=plaintext)
    from chorus.security.identity import Identity  # with the library for certificates, which most ranks never need

    return Security(Identity(identity), plaintext)
