"""What each strategy does: where it cuts the layers, and which share of every layer it gives a machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chorus.config.strategies import Strategy
from chorus.planning.costs import Machine, StageTable
from chorus.planning.cuts import Bounds, apportion, balanced, nearest_to_shares
from chorus.planning.plan import DoesNotFit, numbers, size
from chorus.planning.problem import Problem

Outcome = tuple[Bounds | None, tuple[str, ...]]
"""Where the layers are cut, None where nothing fits, and what is worth telling."""
Stages = Sequence[StageTable]


@dataclass(frozen=True)
class Method:
    """What a strategy does."""

    cut: Callable[[Problem, Stages], Outcome]
    """Divides the layers among these stages, in this order."""
    weigh: Callable[[Machine], float] | None = None
    """A machine's share of every layer in tensor parallelism; None: given by the user, or whatever is quickest."""


def _memory(machine: Machine) -> float:
    return float(machine.memory)


def _compute(machine: Machine) -> float:
    return machine.flops


def _uniform(problem: Problem, stages: Stages) -> Outcome:
    share, extra = divmod(problem.layers, len(stages))
    # The leader, which holds the head too, is the last stage and takes none of the remainder before the others.
    counts = [share + (stage < extra) for stage in range(len(stages))]
    return _fitting(stages, counts, [1 / len(stages)] * len(stages))


def _proportional(weigh: Callable[[Machine], float]) -> Method:
    def cut(problem: Problem, stages: Stages) -> Outcome:
        weights = [weigh(stage.node) for stage in stages]
        counts = apportion(weights, problem.layers, [stage.node.name for stage in stages])
        return _fitting(stages, counts, [weight / sum(weights) for weight in weights])

    return Method(cut, weigh)


def _balanced(problem: Problem, stages: Stages) -> Outcome:
    return balanced(stages), ()


def _custom(problem: Problem, stages: Stages) -> Outcome:
    """What the user laid down is kept or refused, never changed."""
    request = problem.request
    if request.layers:
        counts: Sequence[int] = tuple(reversed(request.layers))
    else:
        assert request.proportions is not None
        names = [stage.node.name for stage in stages]
        counts = apportion(tuple(reversed(request.proportions)), problem.layers, names)
    bounds = _bounds(counts)
    short = [
        (stage.node.name, int(stage.need[run] - stage.node.memory))
        for stage, run in zip(stages, pairwise(bounds), strict=True)
        if not stage.fits[run]
    ]
    if short:
        name, missing = max(short, key=lambda item: item[1])
        better = nearest_to_shares(stages, [count / problem.layers for count in counts])
        hint = f"the nearest split that fits is {numbers(_counts(better))}" if better else "no other split fits either"
        raise DoesNotFit(sum(bytes_short for _, bytes_short in short), (hint,), f" (on {name} {size(missing)})")
    return bounds, ()


def _fitting(stages: Stages, counts: Sequence[int], shares: Sequence[float]) -> Outcome:
    """The wanted split, or the nearest one that fits."""
    bounds = _bounds(counts)
    if all(stage.fits[run] for stage, run in zip(stages, pairwise(bounds), strict=True)):
        return bounds, ()
    nearest = nearest_to_shares(stages, shares)
    if nearest is None:
        return None, ()
    return nearest, (f"the shares alone would give {numbers(_counts(bounds))}, which does not fit",)


METHODS: dict[Strategy, Method] = {
    "uniform": Method(_uniform, lambda machine: 1.0),
    "memory_proportional": _proportional(_memory),
    "compute_proportional": _proportional(_compute),
    "balanced": Method(_balanced),
    "custom": Method(_custom),
}
"""Of every strategy but auto, which is the planner's own search."""


def _bounds(counts: Sequence[int]) -> Bounds:
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)


def _counts(bounds: Bounds) -> tuple[int, ...]:
    """The layers of each rank, in rank order."""
    return tuple(last - first for first, last in reversed(list(pairwise(bounds))))
