"""The memory of rank 0's machine and of the workers of a hostfile, which say themselves what they have left."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from chorus.deploy.room import HERE, Room
from chorus.messages.proto import rank_pb2, rank_pb2_grpc
from chorus.platform.memory.ledger import Booking, Ledger
from chorus.transport.channel import open_channel
from chorus.transport.security import Security

log = logging.getLogger("chorus.models")

ANSWER_SECONDS = 8.0
"""Where nobody listens that is told at once: this is for a machine that is busy."""
LET_GO_SECONDS = 5.0
"""How long workers may take to notice that a leader has ended, which has told them so."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class HandBooks:
    """What a leader takes is booked here, what its ranks take by their workers."""

    ledger: Ledger
    workers: Sequence[str]
    """The addresses of the ranks from 1 on. One that does not answer is left to those who load there."""
    groups: dict[str, str] = field(default_factory=dict)
    """What the present load of each model is called at the workers."""

    def room(self) -> Room:
        told = self._ask("")
        free = {worker: reply.free for worker, reply in told.items()}
        budget = {worker: reply.budget for worker, reply in told.items()}
        return Room({HERE: self.ledger.free(), **free}, {HERE: self.ledger.budget(), **budget})

    def book(self, owner: str, amount: int, what: str, force: bool = False) -> Booking:
        return self.ledger.book(owner, amount, what, force)

    def release(self, owner: str) -> None:
        """Its leader is gone, but not before all workers know that does its memory count as free."""
        self.ledger.release(owner)
        group, deadline = self.groups.pop(owner, ""), time.monotonic() + LET_GO_SECONDS
        while group and any(reply.held for reply in self._ask(group).values()):
            if time.monotonic() > deadline:
                log.warning("a worker still keeps what %s had", owner)
                return
            time.sleep(_LOOK_SECONDS)

    def _ask(self, group: str) -> dict[str, rank_pb2.RoomReply]:
        if not self.workers:
            return {}
        with ThreadPoolExecutor(len(self.workers)) as pool:
            replies = pool.map(lambda worker: _room_of(worker, group), self.workers)
            return {worker: reply for worker, reply in zip(self.workers, replies, strict=True) if reply}


def _room_of(worker: str, group: str) -> rank_pb2.RoomReply | None:
    with contextlib.suppress(grpc.RpcError), open_channel(worker, Security(plaintext=True)) as channel:
        asked = rank_pb2.RoomRequest(group=group)
        return rank_pb2_grpc.RankStub(channel).Room(asked, timeout=ANSWER_SECONDS)
    return None
