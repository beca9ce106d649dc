"""What a rank knows of the others when it is to meet them, and what it has once they have met.

A transport is opened by one function, named in the catalog: it takes a `Meeting` and the rank's `Inbox`, which the
rank's gRPC server fills, and gives a `Connection`. Every rank calls it at about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chorus.errors import ChorusError
from chorus.transport.security import PRIVATE, Security

if TYPE_CHECKING:
    import mlx.core as mx

    from chorus.transport.links import Link
    from chorus.transport.packing import Compression

DeviceMatrix = Sequence[Sequence[str | Sequence[str] | None]]


class CannotJoin(ChorusError, RuntimeError):
    """A group that cannot be formed: says what is missing."""


@dataclass(frozen=True)
class Meeting:
    rank: int
    ranks: int
    stage: int = 0
    """Counted from the leader's, which holds the last layers."""
    stages: int = 1
    member: int = 0
    """Which of the ranks that share the stage's layers."""
    members: int = 1
    previous_rank: int | None = None
    next_rank: int | None = None
    """Where activations come from and go to; None at the ends of the pipeline."""
    addresses: Sequence[str] = ()
    """Where every rank's gRPC server listens, in rank order."""
    hosts: Sequence[str] = ()
    """ip:port of every rank, in rank order, for a group of its own: nobody listens there yet."""
    coordinator: str = ""
    """host:port where ranks may meet that need one place for it."""
    rdma_devices: DeviceMatrix | None = None
    """Which device, or which several, each rank reaches each other rank by."""
    step_timeout: float = 120.0
    compression: Compression = "off"
    look_ahead: bool = False
    """Every stage computes on a CPU: what is sent and received may stay inside the graph."""
    session: int = 0
    """Drawn for this load: what comes of another one is refused."""
    security: Security = PRIVATE


@dataclass(frozen=True)
class Connection:
    link: Link | None
    """To the stages before and after this one; None where there is only one."""
    peers: mx.distributed.Group | None
    """The ranks that share this one's layers; None where it has them alone."""

    def close(self) -> None:
        if self.link:
            self.link.close()
