"""The simple strategies: from stages in their order to where the layers are cut. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from chorus.planning.costs import Node, StageTable
from chorus.planning.cuts import Bounds, apportion, balanced, nearest_to_shares
from chorus.planning.facts import ModelFacts
from chorus.planning.plan import DoesNotFit, numbers, size
from chorus.planning.wish import Wish

Outcome = tuple[Bounds | None, tuple[str, ...]]


def _uniform(facts: ModelFacts, stages: Sequence[StageTable], wish: Wish) -> Outcome:
    share, extra = divmod(len(facts.layers), len(stages))
    # The leader, which holds the head too, is the last stage and takes none of the remainder before the others.
    counts = [share + (stage < extra) for stage in range(len(stages))]
    return _fitting(stages, counts, [1 / len(stages)] * len(stages))


def _proportional(weigh: Callable[[Node], float]) -> Callable[[ModelFacts, Sequence[StageTable], Wish], Outcome]:
    def split(facts: ModelFacts, stages: Sequence[StageTable], wish: Wish) -> Outcome:
        weights = [weigh(stage.node) for stage in stages]
        counts = apportion(weights, len(facts.layers), [stage.node.name for stage in stages])
        return _fitting(stages, counts, [weight / sum(weights) for weight in weights])

    return split


def _balanced(facts: ModelFacts, stages: Sequence[StageTable], wish: Wish) -> Outcome:
    return balanced(stages), ()


def _custom(facts: ModelFacts, stages: Sequence[StageTable], wish: Wish) -> Outcome:
    """What the user laid down is kept or refused, never changed."""
    if wish.layers:
        counts: Sequence[int] = tuple(reversed(wish.layers))
    else:
        assert wish.proportions is not None
        names = [stage.node.name for stage in stages]
        counts = apportion(tuple(reversed(wish.proportions)), len(facts.layers), names)
    bounds = _bounds(counts)
    short = [
        (stage.node.name, int(stage.need[run] - stage.node.memory))
        for stage, run in zip(stages, pairwise(bounds), strict=True)
        if not stage.fits[run]
    ]
    if short:
        name, missing = max(short, key=lambda item: item[1])
        better = nearest_to_shares(stages, [count / len(facts.layers) for count in counts])
        hint = f"the nearest split that fits is {numbers(_counts(better))}" if better else "no other split fits either"
        raise DoesNotFit(sum(bytes_short for _, bytes_short in short), (hint,), f" (on {name} {size(missing)})")
    return bounds, ()


def _fitting(stages: Sequence[StageTable], counts: Sequence[int], shares: Sequence[float]) -> Outcome:
    """The wanted split, or the nearest one that fits."""
    bounds = _bounds(counts)
    if all(stage.fits[run] for stage, run in zip(stages, pairwise(bounds), strict=True)):
        return bounds, ()
    nearest = nearest_to_shares(stages, shares)
    if nearest is None:
        return None, ()
    return nearest, (f"the shares alone would give {numbers(_counts(bounds))}, which does not fit",)


STRATEGIES: dict[str, Callable[[ModelFacts, Sequence[StageTable], Wish], Outcome]] = {
    "uniform": _uniform,
    "memory_proportional": _proportional(lambda node: float(node.memory)),
    "compute_proportional": _proportional(lambda node: node.flops),
    "balanced": _balanced,
    "custom": _custom,
}


def _bounds(counts: Sequence[int]) -> Bounds:
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)


def _counts(bounds: Bounds) -> tuple[int, ...]:
    """In rank order."""
    return tuple(last - first for first, last in reversed(list(pairwise(bounds))))
