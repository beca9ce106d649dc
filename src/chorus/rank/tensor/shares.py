"""How much of each layer every rank gets: pure arithmetic on weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import gcd

from chorus.planning.split import SplitError

Range = tuple[int, int]


def reduced(weights: Sequence[int]) -> tuple[int, ...]:
    """The same proportions in the smallest numbers."""
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def apportion(total: int, weights: Sequence[int], unit: int = 1) -> list[Range]:
    """Consecutive ranges of `total` in the proportions of the weights, each boundary on a multiple of `unit` and no
    range empty; the last one takes what is left over.
    """
    ranks, units = len(weights), total // unit
    if units < ranks:
        raise SplitError(f"{total} columns in units of {unit} cannot be shared by {ranks} ranks")
    edges = [0]
    for rank, reached in enumerate(accumulate(weights[:-1]), start=1):
        ideal = round(units * reached / sum(weights))
        edges.append(min(max(ideal, edges[-1] + 1), units - (ranks - rank)))
    return list(pairwise([*(edge * unit for edge in edges), total]))


def head_ranges(groups: int, heads_per_group: int, weights: Sequence[int]) -> list[Range]:
    """The query heads of each rank. Key/value groups stay whole; where there are more ranks than groups, a group may
    be shared by ranks that all keep its keys and values.
    """
    parts = reduced(weights)
    heads = groups * heads_per_group
    if heads % sum(parts) == 0:
        unit = heads // sum(parts)
        edges = [unit * reached for reached in accumulate(parts, initial=0)]
        ranges = list(pairwise(edges))
        if all(_uniform(found, heads_per_group) for found in ranges):
            return ranges
    shown = ",".join(map(str, weights))
    if len(weights) > groups:
        raise SplitError(
            f"{len(weights)} ranks with weights {shown} cannot share {groups} key/value groups of {heads_per_group} "
            f"heads: give at most {groups} ranks, or use --parallel pipeline"
        )
    fitting = ",".join(str(stop - start) for start, stop in apportion(groups, weights))
    raise SplitError(
        f"weights {shown} make {sum(parts)} parts and do not divide {groups} key/value groups: "
        f"weights {fitting} would fit, or use --parallel pipeline"
    )


def default_weights(groups: int, heads_per_group: int, ranks: int) -> tuple[int, ...]:
    """As even as whole groups allow: the first ranks take one more where the groups do not divide."""
    if ranks > groups:
        even = (1,) * ranks
        head_ranges(groups, heads_per_group, even)
        return even
    base, extra = divmod(groups, ranks)
    return reduced([base + (rank < extra) for rank in range(ranks)])


def _uniform(heads: Range, heads_per_group: int) -> bool:
    """Whether all the groups these heads belong to lend them the same number of heads."""
    start, stop = heads
    whole_groups = start % heads_per_group == 0 and stop % heads_per_group == 0
    return whole_groups or start // heads_per_group == (stop - 1) // heads_per_group
