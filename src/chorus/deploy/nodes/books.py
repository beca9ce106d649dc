"""The memory of this machine and of all its nodes, as far as it is needed to decide who makes room for whom.

Whether a model fits is for its plan to say, which knows how it can be divided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chorus.cluster.coordinator.process import Nodes
from chorus.deploy.nodes.group import ClusterGroup
from chorus.deploy.room import HERE, Need, Room, without
from chorus.platform.memory.ledger import Booking, Ledger, NoRoom


@dataclass(frozen=True)
class NodeBooks:
    """What is booked itself stands in the ledgers of the machines: groups and agents write it there."""

    nodes: Nodes
    here: Ledger
    groups: Callable[[], Iterable[ClusterGroup]]

    def room(self) -> Room:
        """What groups that are being started will book is not free."""
        there = [(node.name, node.state) for node in self.nodes.present if not node.state.draining]
        free = {HERE: self.here.free(), **{name: state.memory_unbooked for name, state in there}}
        budget = {name: state.memory_unbooked + state.memory_booked for name, state in there}
        for group in self.groups():
            free = without(free, [Need(max(0, group.promised - sum(group.booked.values())))])
        return Room({name: max(0, left) for name, left in free.items()}, {HERE: self.here.budget(), **budget})

    def book(self, owner: str, amount: int, what: str, force: bool = False) -> Booking:
        """Promise a group so much; raises NoRoom. It books its ranks itself, once it knows where they are."""
        room = self.room()
        free, budget = sum(room.free.values()), sum(room.budget.values())
        if not force and amount > free:
            raise NoRoom(what, amount, budget, (Booking("others", budget - free, "other models", 0, ""),))
        return Booking(owner, amount, what, os.getpid(), "")

    def release(self, owner: str) -> None:
        """Agents and the group have given back what it had."""
