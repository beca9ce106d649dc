"""What keys, values and states may take on each rank. The tightest rank decides for all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chorus.messages.rank import CACHE_STEP
from chorus.platform.process.losses import Cause, Loss

log = logging.getLogger("chorus.engine")

STEP = CACHE_STEP
LESS_ROOM = 0.75
"""What is left of the room for caches after there was too little memory for a step."""


@dataclass(frozen=True, slots=True)
class RankRoom:
    budget: int
    """Bytes for running streams and stored prefixes together."""
    per_token: int
    per_state: int = 0
    """What the windows and recurrent states of one sequence take at most."""
    layers: int = 1
    """A cache that grows is copied layer by layer: so much of it exists twice for a moment."""

    def bytes(self, use: Use) -> int:
        return self.per_token * use.tokens + self.per_state * use.states + self.copied(use)

    def copied(self, use: Use) -> int:
        return self.per_token * use.largest // self.layers


@dataclass(frozen=True, slots=True)
class Use:
    """What is held, in units that are the same on every rank."""

    tokens: int = 0
    states: int = 0
    largest: int = 0
    """The tokens of the largest cache that may grow next."""

    def __add__(self, other: Use) -> Use:
        return Use(self.tokens + other.tokens, self.states + other.states, max(self.largest, other.largest))


@dataclass(frozen=True, slots=True)
class Room:
    ranks: tuple[RankRoom, ...] = ()
    """None: memory is not looked after."""

    def holds(self, use: Use) -> bool:
        return all(rank.bytes(use) <= rank.budget for rank in self.ranks)

    def after(self, loss: Loss) -> Room:
        """Less where there was too little memory."""
        if loss.cause is not Cause.MEMORY:
            return self
        log.warning("caches get %.0f %% of the room they had: %s", 100 * LESS_ROOM, loss.told)
        return Room(tuple(replace(rank, budget=int(LESS_ROOM * rank.budget)) for rank in self.ranks))

    def tightest(self, use: Use) -> RankRoom | None:
        """The rank that has the smallest part of its room left."""
        return max(self.ranks, key=lambda rank: rank.bytes(use) / max(1, rank.budget), default=None)

    def size(self, tokens: int, states: int) -> float:
        """How much of the tightest room this takes, as a part of it."""
        return max((rank.bytes(Use(tokens, states)) / max(1, rank.budget) for rank in self.ranks), default=0.0)

    @property
    def tokens(self) -> int | None:
        """How many tokens one stream may have; None where they cost nothing or nobody counts."""
        costly = [
            (rank.budget - rank.per_state) * rank.layers // (rank.per_token * (rank.layers + 1)) // STEP * STEP
            for rank in self.ranks
            if rank.per_token
        ]
        return max(0, min(costly)) if costly else None


def rounded(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


def rectangle(lengths: Sequence[int]) -> Use:
    """Rows of one batch: every row is as wide as the longest."""
    if not lengths:
        return Use()
    tokens = len(lengths) * rounded(max(lengths))
    return Use(tokens, len(lengths), tokens)


UNLIMITED = Room()
NOTHING = Use()
