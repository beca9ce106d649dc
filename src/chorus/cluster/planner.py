"""From a model, nodes and links to a plan. A pure function; see `plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from chorus.cluster.config_tree import Strategy
from chorus.cluster.costs import Links, Node, StageTable, Workload, predict_pipeline, stage_tables
from chorus.cluster.facts import ModelFacts
from chorus.cluster.plan import DoesNotFit, Excluded, Plan, PlanError, size
from chorus.cluster.planner_build import pipeline_plan, tensor_plan
from chorus.cluster.planner_hints import hints_for
from chorus.cluster.planner_search import EXACT_NODES, Chain, best_split, fewest_missing, find_chain
from chorus.cluster.planner_split import Bounds, apportion, balanced, least_missing, nearest_to_shares
from chorus.cluster.planner_tensor import (
    TENSOR_ARCHITECTURES,
    SliceTable,
    TensorChoice,
    can_sum,
    choose_tensor,
    predicted,
    share_out,
    slice_table,
)

Wanted = Literal["auto", "pipeline", "tensor", "single", "hybrid"]


@dataclass(frozen=True)
class Wish:
    """What the user laid down."""

    strategy: Strategy = "auto"
    proportions: tuple[float, ...] | None = None
    layers: tuple[int, ...] | None = None
    leader: str | None = None
    """The node that must lead in an `auto` plan; the other strategies are led by the first node."""
    parallel: Wanted = "auto"
    """auto: whatever is quickest (the strategy auto), or a pipeline (the others). single: one node, the best."""
    weights: tuple[int, ...] | None = None
    """Tensor parallelism: the share of each node, in rank order."""


def plan(facts: ModelFacts, nodes: Sequence[Node], links: Links, work: Workload, wish: Wish | None = None) -> Plan:
    """Raises DoesNotFit where memory is short, PlanError where the wish makes no sense. `nodes` are in rank order."""
    wish = wish or Wish()
    _check(facts, nodes, work, wish)
    tables = stage_tables(facts, nodes, work)
    if wish.parallel == "single":
        return _single(facts, tables, links, work, wish)
    if wish.parallel == "tensor" and (wish.strategy != "auto" or wish.weights):
        return _tensor(facts, tables, links, work, wish)
    if wish.strategy == "auto":
        return _auto(facts, tables, links, work, wish)
    # The first node leads and holds the last layers, so stages run against the order of ranks.
    stages = list(reversed(tables))
    if len(stages) > len(facts.layers):
        raise PlanError(
            f"{len(stages)} nodes cannot share {len(facts.layers)} layers: leave some out, or use the strategy auto"
        )
    bounds, notes = _STRATEGIES[wish.strategy](facts, stages, wish)
    if bounds is None:
        raise _does_not_fit(facts, nodes, links, work, int(least_missing(stages)[0]), wish)
    chain = Chain(tuple(stages), bounds, predict_pipeline(facts, stages, links, work, bounds))
    return pipeline_plan(facts, chain, work, wish.strategy, notes=notes)


def _check(facts: ModelFacts, nodes: Sequence[Node], work: Workload, wish: Wish) -> None:
    if not nodes:
        raise PlanError("there are no nodes to plan for: name some")
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        raise PlanError(f"two nodes have one name among {', '.join(names)}: give each its own")
    if wish.strategy not in get_args(Strategy):
        raise PlanError(f"strategy {wish.strategy} is unknown: use one of {', '.join(get_args(Strategy))}")
    if wish.leader is not None and wish.leader not in names:
        raise PlanError(f"the leader {wish.leader} is not among the nodes {', '.join(names)}")
    if wish.parallel == "hybrid":
        raise PlanError(
            "parallel hybrid is laid down by hand, with a split and weights: plan for pipeline, tensor, single or auto"
        )
    if wish.parallel == "tensor":
        _check_tensor(facts, len(nodes), wish)
    elif wish.strategy == "custom" and wish.parallel != "single":
        _check_custom(facts, len(nodes), wish)
    if work.context > facts.context:
        raise PlanError(f"the model's context is {facts.context} tokens, not {work.context}: ask for less")


def _check_custom(facts: ModelFacts, count: int, wish: Wish) -> None:
    given = wish.layers or wish.proportions
    if not given:
        raise PlanError("the strategy custom needs proportions or layers: give one of them")
    if len(given) != count:
        raise PlanError(f"{_list(given)} has {len(given)} entries for {count} nodes: give one per node, rank 0 first")
    if any(part <= 0 for part in given):
        raise PlanError(f"{_list(given)}: every node needs more than 0")
    if wish.layers and sum(wish.layers) != len(facts.layers):
        raise PlanError(
            f"layers {_list(wish.layers)} add up to {sum(wish.layers)} where the model has {len(facts.layers)}"
        )


def _check_tensor(facts: ModelFacts, count: int, wish: Wish) -> None:
    if facts.model_type not in TENSOR_ARCHITECTURES:
        raise PlanError(f"{facts.model_type} has no rule to divide it inside its layers: use parallel pipeline")
    if count < 2:
        raise PlanError("tensor parallelism needs 2 nodes at least: name more, or use parallel single")
    given = wish.weights or (wish.proportions if wish.strategy == "custom" else None)
    if wish.strategy == "custom" and not given:
        raise PlanError("the strategy custom with parallel tensor needs weights or proportions: give one of them")
    if given and (len(given) != count or any(part <= 0 for part in given)):
        raise PlanError(f"{_list(given)}: expected {count} weights above 0, one per node, rank 0 first")
    if (given or wish.strategy != "auto") and count > facts.groups:
        raise PlanError(
            f"{count} nodes cannot share {facts.groups} key/value groups: leave some out, or use the strategy auto"
        )


def _list(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


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
        hint = f"the nearest split that fits is {_list(_counts(better))}" if better else "no other split fits either"
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
    return nearest, (f"the shares alone would give {_list(_counts(bounds))}, which does not fit",)


_STRATEGIES: dict[str, Callable[[ModelFacts, Sequence[StageTable], Wish], Outcome]] = {
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


def _auto(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish) -> Plan:
    exact = len(tables) <= EXACT_NODES
    chain = None
    if wish.parallel != "tensor":
        chain = find_chain(facts, tables, links, work, wish.leader)
        if not exact:
            chain = _better(chain, _fixed_chains(facts, tables, links, work, wish))
    tensor = None
    if wish.parallel != "pipeline" and facts.model_type in TENSOR_ARCHITECTURES and len(tables) > 1:
        tensor = choose_tensor(facts, tables, links, work, wish.leader, exact)
    if chain is None and tensor is None:
        raise _nothing_fits(facts, tables, links, work, wish)
    if tensor and (chain is None or tensor.prediction.request_seconds < chain.seconds):
        notes = (f"the best pipeline would take {chain.seconds:.3g} s a request",) if chain else ()
        return tensor_plan(facts, _led(tensor, wish.leader), tables, work, "auto", notes)
    assert chain is not None
    excluded = _excluded(facts, chain, tables, links, work)
    heuristic = f"{len(tables)} nodes: found by a heuristic; up to {EXACT_NODES} the search is exact"
    notes = () if exact else (heuristic,)
    return pipeline_plan(facts, chain, work, "auto", excluded, notes)


def _led(choice: TensorChoice, leader: str | None) -> TensorChoice:
    """In the order of ranks: the leader, then the largest share first."""
    pairs = sorted(
        zip(choice.tables, choice.shares, strict=True),
        key=lambda pair: (pair[0].node.name != leader, -pair[1], pair[0].node.name),
    )
    return replace(choice, tables=tuple(table for table, _ in pairs), shares=tuple(share for _, share in pairs))


def _single(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish) -> Plan:
    able = [table for table in tables if wish.leader in (None, table.node.name)]
    chains = [chain for table in able if (chain := best_split(facts, [table], links, work))]
    best = _better(None, chains)
    if best is None:
        missing = min(float(table.need[0, -1]) - table.node.memory for table in able)
        raise _does_not_fit(facts, [table.node for table in able], links, work, int(missing), wish)
    reason = "one node was asked for"
    left_out = tuple(Excluded(table.node.name, reason) for table in tables if table not in best.tables)
    return pipeline_plan(facts, best, work, wish.strategy, left_out)


def _tensor(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish) -> Plan:
    """All nodes in the order given, their shares by the strategy; what was laid down is kept or refused."""
    slices = [slice_table(facts, table, work) for table in tables]
    laid_down = wish.weights or (wish.proportions if wish.strategy == "custom" else None)
    weights: Sequence[float] | None = laid_down
    if weights is None and wish.strategy in _SHARES:
        weights = [_SHARES[wish.strategy](table.node) for table in tables]
    choice = share_out(facts, slices, links, work) if weights is None else None
    notes: tuple[str, ...] = ()
    if weights is not None:
        shares = apportion(weights, facts.groups, [table.node.name for table in tables])
        choice = predicted(facts, slices, shares, links, work)
        if choice is None and not laid_down:
            choice = share_out(facts, slices, links, work)
            notes = (f"the shares alone would give {_list(shares)}, which does not fit",)
    if choice is None:
        raise _tensor_misfit(facts, slices, links, work, weights)
    return tensor_plan(facts, choice, tables, work, wish.strategy, notes)


def _tensor_misfit(
    facts: ModelFacts, slices: Sequence[SliceTable], links: Links, work: Workload, weights: Sequence[float] | None
) -> PlanError:
    if not can_sum(slices, links):
        return PlanError("these nodes have no link that collectives run on: use parallel pipeline")
    names = [table.node.name for table in slices]
    shares = apportion(weights or [1.0] * len(slices), facts.groups, names)
    short = [table.need[share] - table.node.memory for table, share in zip(slices, shares, strict=True)]
    return DoesNotFit(max(1, sum(max(0, missing) for missing in short)), ("use parallel pipeline", "add a node"))


_SHARES: dict[str, Callable[[Node], float]] = {
    "uniform": lambda node: 1.0,
    "memory_proportional": lambda node: float(node.memory),
    "compute_proportional": lambda node: node.flops,
}


def _nothing_fits(
    facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish
) -> PlanError:
    if wish.parallel == "tensor":
        return _tensor_misfit(facts, [slice_table(facts, table, work) for table in tables], links, work, None)
    nodes = [table.node for table in tables]
    return _does_not_fit(facts, nodes, links, work, int(fewest_missing(tables, wish.leader)), wish)


def _fixed_chains(
    facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish
) -> list[Chain]:
    """All nodes in the order given, split by each simple strategy: never let a heuristic lose to those."""
    stages = list(reversed(tables))
    if len(stages) > len(facts.layers) or wish.leader not in (None, stages[-1].node.name):
        return []
    outcomes = [_STRATEGIES[name](facts, stages, wish)[0] for name in _STRATEGIES if name != "custom"]
    chains = [
        Chain(tuple(stages), bounds, predict_pipeline(facts, stages, links, work, bounds))
        for bounds in outcomes
        if bounds is not None
    ]
    best = best_split(facts, stages, links, work)
    return [*chains, best] if best else chains


def _better(chain: Chain | None, others: Sequence[Chain]) -> Chain | None:
    return min([*([chain] if chain else []), *others], key=lambda found: found.seconds, default=None)


def _does_not_fit(
    facts: ModelFacts, nodes: Sequence[Node], links: Links, work: Workload, missing: int, wish: Wish
) -> DoesNotFit:
    def fits(changed: ModelFacts, changed_nodes: Sequence[Node], changed_work: Workload) -> bool:
        tables = stage_tables(changed, changed_nodes, changed_work)
        if wish.parallel == "single":
            return any(bool(table.fits[0, -1]) for table in tables)
        if wish.strategy != "auto":
            return len(tables) <= len(facts.layers) and least_missing(tables[::-1])[0] == 0
        return fewest_missing(tables, wish.leader) == 0

    return DoesNotFit(max(1, missing), hints_for(facts, nodes, work, fits))


def _excluded(
    facts: ModelFacts, chain: Chain, tables: Sequence[StageTable], links: Links, work: Workload
) -> tuple[Excluded, ...]:
    """Each idle node, with what a request would take if it had to join."""
    left_out = []
    for table in tables:
        if table in chain.tables:
            continue
        places = range(len(chain.tables)) if len(tables) <= EXACT_NODES else range(1)
        orders = [[*chain.tables[:place], table, *chain.tables[place:]] for place in places]
        joined = _better(None, [found for order in orders if (found := best_split(facts, order, links, work))])
        if len(chain.tables) == len(facts.layers):
            reason = "there is no layer left for it"
        elif joined is None:
            reason = f"a layer does not fit in its {size(table.node.memory)} beside cache and reserve"
        else:
            reason = f"with it a request would take {joined.seconds:.3g} s instead of {chain.seconds:.3g} s"
        left_out.append(Excluded(table.node.name, reason))
    return tuple(left_out)
