"""What a group takes of the memory of its machines, known before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from chorus.config.settings import Settings
from chorus.deploy.room import HERE, Bytes, Need, Room
from chorus.planning.costs import MIB
from chorus.planning.plan import RankPlan
from chorus.platform.memory.ledger import Booking, Ledger

_UNPLANNED_CACHE = 256 * MIB
"""Of one rank, where nobody can say what a context takes."""


class Books(Protocol):
    """The memory that models share, of one machine or of several. Any of it may wait for a file that is locked, or for
    an answer.
    """

    def room(self) -> Room:
        """What there is, and what can still be booked."""

    def book(self, owner: str, amount: int, what: str, force: bool = False) -> Booking:
        """Take a part before loading; raises NoRoom, LedgerError."""

    def release(self, owner: str) -> None:
        """Give a part back, once its processes are gone."""


@dataclass(frozen=True)
class OneMachine:
    """This one, by its ledger."""

    ledger: Ledger

    def room(self) -> Room:
        return Room({HERE: self.ledger.free()}, {HERE: self.ledger.budget()})

    def book(self, owner: str, amount: int, what: str, force: bool = False) -> Booking:
        return self.ledger.book(owner, amount, what, force)

    def release(self, owner: str) -> None:
        self.ledger.release(owner)


@dataclass(frozen=True)
class Needs:
    """Bytes that the ranks of one model take, and of which machines."""

    ranks: int
    fixed: int
    """Weights, activations and the reserve of all of them together."""
    cache: int
    """Of each: for the planned context once, or as the settings say."""
    given: bool = False
    """The settings say how large the cache is: it is never more."""
    at: frozenset[str] | None = None
    """The machines of these ranks; None: any."""
    others: Mapping[str, int] = field(default_factory=dict)
    """What a rank takes besides of each machine that somebody else books, without its cache, which is as large."""

    @property
    def least(self) -> int:
        """What is booked for it at least."""
        return self.fixed + self.ranks * self.cache

    @property
    def wanted(self) -> tuple[Need, ...]:
        there = (Need(fixed + self.cache, frozenset({machine})) for machine, fixed in self.others.items())
        return Need(self.least, self.at), *there

    def of(self, free: Bytes, alone: bool) -> int:
        """How much to book where so much is left: of several each has a context to spare, where all its machines have
        room for that. One alone books what it cannot do without, and its caches take what is free besides: others'
        workers may come to this machine.
        """
        spare = [free[machine] - fixed for machine, fixed in self.others.items() if machine in free]
        cache = self.cache if self.given or alone else max(self.cache, min([2 * self.cache, *spare]))
        return max(self.least, min(self.fixed + self.ranks * cache, Need(0, self.at).left(free)))

    def booked_elsewhere(self, booked: int) -> dict[str, int]:
        """What others book for it where so much was booked for it."""
        return {machine: fixed + self.cache_of(booked) for machine, fixed in self.others.items()}

    def cache_of(self, booked: int) -> int:
        """What each rank's cache may take of it."""
        return (booked - self.fixed) // self.ranks


def needs_of(settings: Settings, planned: Sequence[RankPlan], folder: Path) -> Needs:
    """As planned; without a plan, from the sizes of the model's files."""
    ranks, given = settings.engine.ranks, settings.cache.memory
    if planned:
        fixed = sum(rank.needed_bytes - rank.cache_bytes for rank in planned)
        cache = max(rank.cache_bytes for rank in planned)
    else:
        weights = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
        fixed, cache = weights + ranks * settings.engine.reserve_mb * MIB, _UNPLANNED_CACHE
    return Needs(ranks, fixed, cache if given is None else given, given is not None)
