"""What a group takes of this machine's memory, known before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chorus.config.settings import Settings
from chorus.planning.costs import MIB
from chorus.planning.plan import RankPlan

_UNPLANNED_CACHE = 256 * MIB
"""Of one rank, where nobody can say what a context takes."""


@dataclass(frozen=True)
class Needs:
    """Bytes of this machine that the ranks of one model take."""

    ranks: int
    fixed: int
    """Weights, activations and the reserve of all of them together."""
    cache: int
    """Of each: for the planned context once, or as the settings say."""
    given: bool = False
    """The settings say how large the cache is: it is never more."""

    @property
    def least(self) -> int:
        return self.fixed + self.ranks * self.cache

    def of(self, free: int, alone: bool) -> int:
        """How much to book where so much is left: of several each has a context to spare. One alone books what it
        cannot do without, and its caches take what is free besides: others' workers may come to this machine.
        """
        most = self.least if self.given or alone else self.least + self.ranks * self.cache
        return max(self.least, min(most, free))

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
