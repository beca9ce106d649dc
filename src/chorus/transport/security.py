"""How a process meets others: by mutual TLS, in the open, or not at all beyond its own machine."""

from __future__ import annotations

from dataclasses import dataclass
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
