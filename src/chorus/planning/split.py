"""Which layers each rank holds. Lists are in rank order; rank 0 leads and holds the last layers."""

from __future__ import annotations

from collections.abc import Sequence

from chorus.errors import ChorusError


class SplitError(ChorusError, ValueError):
    """A model cannot be divided as asked, among ranks or inside its layers: one line that says what would fit."""


def even_split(layers: int, ranks: int) -> tuple[int, ...]:
    """The most even split; the leader, which also holds the head, takes none of the remainder."""
    if ranks > layers:
        raise SplitError(f"{ranks} ranks cannot share {layers} layers: use at most {layers} ranks")
    share, extra = divmod(layers, ranks)
    return tuple(share + (rank >= ranks - extra) for rank in range(ranks))


def check_layer_counts(split: Sequence[int], layers: int, ranks: int) -> tuple[int, ...]:
    shown = ",".join(map(str, split))
    if len(split) != ranks:
        raise SplitError(f"split {shown} has {len(split)} entries for {ranks} ranks: give one per rank, rank 0 first")
    for rank, count in enumerate(split):
        if count < 1:
            raise SplitError(f"split {shown} gives rank {rank} {count} layers: every rank needs at least 1")
    if sum(split) != layers:
        raise SplitError(f"split {shown} adds up to {sum(split)} layers where the model has {layers}")
    return tuple(split)


def layers_of(rank: int, split: Sequence[int]) -> range:
    """The layers of one rank. Rank 0 is the last stage, the highest rank the first."""
    first = sum(split[rank + 1 :])
    return range(first, first + split[rank])


def choose_split(split: Sequence[int] | None, layers: int, ranks: int) -> tuple[int, ...]:
    return check_layer_counts(split, layers, ranks) if split else even_split(layers, ranks)
