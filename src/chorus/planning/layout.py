"""Who holds what: for every rank its layers, and its share of them.

Ranks are numbered stage by stage, the leader's stage first; a stage is one rank (pipeline), or a few that divide its
layers among them (hybrid); with a single stage that is tensor parallelism. Needs no MLX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorus.planning.split import SplitError, layers_of
from chorus.transport import catalog


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its stage, its neighbours, its layers and its share of them."""

    rank: int
    stage: int
    """The number of its stage, counted from the leader's: 0 holds the last layers."""
    member: int
    """Which of the ranks that share the stage's layers."""
    layers: range
    weights: tuple[int, ...]
    """The shares of all members of the stage."""
    previous_rank: int | None
    next_rank: int | None
    """Where activations come from and go to: the same member of the neighbouring stages."""


@dataclass(frozen=True)
class Layout:
    """How the ranks of a group divide a model among them."""

    split: tuple[int, ...]
    """Layers of each stage, the leader's first."""
    weights: tuple[int, ...] = (1,)
    """Shares of the members of a stage, the same in all stages."""

    @property
    def stages(self) -> int:
        return len(self.split)

    @property
    def members(self) -> int:
        return len(self.weights)

    @property
    def ranks(self) -> int:
        return self.stages * self.members

    def place(self, rank: int) -> Place:
        stage, member = divmod(rank, self.members)
        previous, following = rank + self.members, rank - self.members
        return Place(
            rank,
            stage,
            member,
            layers_of(stage, self.split),
            self.weights,
            previous if previous < self.ranks else None,
            following if following >= 0 else None,
        )

    def stage_ranks(self, stage: int) -> range:
        return range(stage * self.members, (stage + 1) * self.members)


def shape(
    parallel: str, ranks: int, split: Sequence[int] | None = None, weights: Sequence[int] | None = None
) -> tuple[int, int]:
    """How many stages, and how many ranks share each of them."""
    if parallel == "tensor":
        if split:
            raise SplitError("a split divides layers among stages: with --parallel tensor give --weights instead")
        return 1, ranks
    if parallel == "pipeline":
        if weights:
            raise SplitError("weights divide every layer: with --parallel pipeline give --split instead")
        return ranks, 1
    return _hybrid_shape(ranks, split, weights)


def _hybrid_shape(ranks: int, split: Sequence[int] | None, weights: Sequence[int] | None) -> tuple[int, int]:
    if split and weights and len(split) * len(weights) != ranks:
        made = f"{len(split)} stages of {len(weights)} ranks, {len(split) * len(weights)} in all"
        asked = f"split {_shown(split)} and weights {_shown(weights)}"
        raise SplitError(f"{asked} make {made}, where there are {ranks}: change one of the three")
    if split:
        stages, members = len(split), ranks // len(split)
        given = f"split {_shown(split)} names {stages} stages"
    elif weights:
        stages, members = ranks // len(weights), len(weights)
        given = f"weights {_shown(weights)} name {members} ranks for each stage"
    else:
        raise SplitError(
            "--parallel hybrid needs --split with the layers of each stage, or --weights with the shares within a stage"
        )
    unit = stages if split else members
    if stages * members != ranks:
        fitting = f"{max(2, ranks // unit) * unit} or {max(2, ranks // unit) * unit + unit}"
        raise SplitError(f"{ranks} ranks are no multiple of {unit}, and {given}: use {fitting} ranks")
    if stages < 2 or members < 2:
        raise SplitError(
            f"--parallel hybrid needs at least 2 stages of 2 ranks and this is {stages} of {members}: "
            f"use --parallel {'tensor' if stages < 2 else 'pipeline'}"
        )
    return stages, members


def check_transport(parallel: str, transport: str) -> None:
    """Raise SplitError where a transport cannot do what this parallelism needs of it."""
    if refusal := catalog.get(transport).refusal(parallel):
        raise SplitError(refusal)


def _shown(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
