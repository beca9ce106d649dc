"""Who a member of the cluster is. What proves it is in `identity`, which needs the library for certificates."""

from __future__ import annotations

from dataclasses import dataclass

from chorus.errors import ChorusError

COORDINATOR = "coordinator"
NODE = "node"


class NotTrusted(ChorusError, ConnectionError):
    """A peer's certificate is not acceptable; the reason is for our log, not for the peer."""


@dataclass(frozen=True)
class Member:
    """Whom a certificate was given to."""

    name: str
    node_id: str
    role: str
