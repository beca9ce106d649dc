"""From a model, nodes and links to a plan. A pure function; see `plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from chorus.cluster.config_tree import Strategy
from chorus.cluster.costs import Links, Node, Prediction, StageTable, Workload, predict_pipeline, stage_table
from chorus.cluster.facts import ModelFacts
from chorus.cluster.plan import DoesNotFit, Excluded, Parallel, Plan, PlanError, RankPlan, size
from chorus.cluster.planner_hints import hints_for
from chorus.cluster.planner_search import EXACT_NODES, Chain, best_split, fewest_missing, find_chain
from chorus.cluster.planner_split import Bounds, apportion, balanced, least_missing, nearest_to_shares
from chorus.cluster.planner_tensor import TENSOR_ARCHITECTURES, TensorChoice, choose_tensor


@dataclass(frozen=True)
class Wish:
    """What the user laid down."""

    strategy: Strategy = "auto"
    proportions: tuple[float, ...] | None = None
    layers: tuple[int, ...] | None = None
    leader: str | None = None
    """The node that must lead in an `auto` plan; the other strategies are led by the first node."""
    tensor: bool = True
    """Whether `auto` may choose tensor parallelism."""


def plan(facts: ModelFacts, nodes: Sequence[Node], links: Links, work: Workload, wish: Wish | None = None) -> Plan:
    """Raises DoesNotFit where memory is short, PlanError where the wish makes no sense. `nodes` are in rank order."""
    wish = wish or Wish()
    _check(facts, nodes, work, wish)
    tables = [stage_table(facts, node, work) for node in nodes]
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
    return _pipeline_plan(facts, chain, work, wish.strategy, notes=notes)


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
    if wish.strategy == "custom":
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
    chain = find_chain(facts, tables, links, work, wish.leader)
    if not exact:
        chain = _better(chain, _fixed_chains(facts, tables, links, work, wish))
    tensor = None
    if wish.tensor and facts.model_type in TENSOR_ARCHITECTURES and len(tables) > 1:
        tensor = choose_tensor(facts, tables, links, work, wish.leader, exact)
    if chain is None and tensor is None:
        nodes = [table.node for table in tables]
        raise _does_not_fit(facts, nodes, links, work, int(fewest_missing(tables, wish.leader)), wish)
    if tensor and (chain is None or tensor.prediction.request_seconds < chain.seconds):
        return _tensor_plan(facts, tensor, tables, work, wish, chain)
    assert chain is not None
    excluded = _excluded(facts, chain, tables, links, work)
    heuristic = f"{len(tables)} nodes: found by a heuristic; up to {EXACT_NODES} the search is exact"
    notes = () if exact else (heuristic,)
    return _pipeline_plan(facts, chain, work, "auto", excluded, notes)


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
        tables = [stage_table(changed, node, changed_work) for node in changed_nodes]
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


def _pipeline_plan(
    facts: ModelFacts,
    chain: Chain,
    work: Workload,
    strategy: str,
    excluded: tuple[Excluded, ...] = (),
    notes: tuple[str, ...] = (),
) -> Plan:
    ranks = []
    for stage, (table, run) in enumerate(zip(chain.tables, pairwise(chain.bounds), strict=True)):
        policy = table.policy(*run)
        ranks.append(
            RankPlan(
                rank=len(chain.tables) - 1 - stage,
                node=table.node.name,
                first_layer=run[0],
                last_layer=run[1] - 1,
                share=facts.groups,
                dtype=policy.dtype,
                dequantize=policy.dequantize,
                weight_bytes=int(table.weights[run]),
                cache_bytes=int(table.cache[run]),
                activation_bytes=int(table.activations[run]),
                reserve_bytes=work.reserve,
                memory_bytes=table.node.memory,
                chunk_seconds=float(table.prefill[run]),
                step_seconds=float(table.decode[run]),
            )
        )
    ranks.reverse()
    parallel: Parallel = "pipeline" if len(ranks) > 1 else "single"
    return Plan(
        model=facts.name,
        model_layers=len(facts.layers),
        strategy=strategy,
        parallel=parallel,
        ranks=tuple(ranks),
        workload=work,
        prediction=chain.prediction,
        limit=_limit(ranks, chain.prediction, tensor=False),
        excluded=excluded,
        notes=notes,
    )


def _tensor_plan(
    facts: ModelFacts,
    choice: TensorChoice,
    tables: Sequence[StageTable],
    work: Workload,
    wish: Wish,
    chain: Chain | None,
) -> Plan:
    pairs = sorted(
        zip(choice.tables, choice.shares, strict=True),
        key=lambda pair: (pair[0].node.name != wish.leader, -pair[1], pair[0].node.name),
    )
    policies = {table.node.name: table.policies for table in tables}
    ranks = [
        RankPlan(
            rank=rank,
            node=table.node.name,
            first_layer=0,
            last_layer=len(facts.layers) - 1,
            share=share,
            dtype=policies[table.node.name][not table.unpacked[share]].dtype,
            dequantize=policies[table.node.name][not table.unpacked[share]].dequantize,
            weight_bytes=table.weights[share],
            cache_bytes=table.cache[share],
            activation_bytes=table.activations,
            reserve_bytes=work.reserve,
            memory_bytes=table.node.memory,
            chunk_seconds=table.prefill[share],
            step_seconds=table.decode[share],
        )
        for rank, (table, share) in enumerate(pairs)
    ]
    used = {table.node.name for table in choice.tables}
    slower = "more nodes would wait longer for each other than they save"
    left_out = tuple(Excluded(table.node.name, slower) for table in tables if table.node.name not in used)
    notes = (f"the best pipeline would take {chain.seconds:.3g} s a request",) if chain else ()
    return Plan(
        model=facts.name,
        model_layers=len(facts.layers),
        strategy="auto",
        parallel="tensor",
        ranks=tuple(ranks),
        workload=work,
        prediction=choice.prediction,
        limit=_limit(ranks, choice.prediction, tensor=True),
        excluded=left_out,
        notes=notes,
    )


def _limit(ranks: Sequence[RankPlan], prediction: Prediction, tensor: bool) -> str:
    """Where most of a token's time goes, and which memory is fullest."""
    slowest = max(ranks, key=lambda rank: rank.step_seconds)
    parts = {f"reading weights and cache on {slowest.node}": slowest.step_seconds}
    if len(ranks) > 1:
        parts["the sums over all ranks" if tensor else "the links between ranks"] = prediction.link_seconds
    name, seconds = max(parts.items(), key=lambda item: item[1])
    fullest = min(ranks, key=lambda rank: rank.headroom_bytes)
    share = round(100 * seconds / prediction.token_seconds)
    return f"{name}, {share} % of each token; the least free memory is {size(fullest.headroom_bytes)} on {fullest.node}"
