"""Whether a cost grows faster than its cause. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NEAR = 4
"""The largest size is compared with those that are at least so much of it as one part in this."""


def excess(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """How far the cost of the largest size lies above a line through the smallest and another near it: 1 is on it.

    The line begins at what the smallest costs, so that a large fixed cost hides nothing; of those near it the steepest
    counts, so that a jump, where another kernel takes over, is no growth.
    """
    first, last = sizes[0], sizes[-1]
    chords = [
        (cost - costs[0]) / (size - first)
        for size, cost in zip(sizes[1:-1], costs[1:-1], strict=True)
        if size * NEAR >= last
    ]
    return costs[-1] / (costs[0] + max(0.0, *chords) * (last - first))
