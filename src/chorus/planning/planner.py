"""From a model, nodes and links to a plan. A pure function; see `plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chorus.planning.build import chain_plan, tensor_plan
from chorus.planning.chain_costs import predict_pipeline
from chorus.planning.costs import Links, Node, StageTable, Workload, stage_tables
from chorus.planning.cuts import apportion, least_missing
from chorus.planning.facts import ModelFacts
from chorus.planning.hints import hints_for
from chorus.planning.hybrid import (
    LEAST,
    GroupTable,
    find_hybrid,
    group_links,
    group_tables,
    in_order,
    of_equals,
    shares_by_weight,
)
from chorus.planning.plan import DoesNotFit, Excluded, Plan, PlanError, numbers, size
from chorus.planning.search import EXACT_NODES, Chain, best_split, fewest_missing, find_chain
from chorus.planning.strategies import STRATEGIES
from chorus.planning.tensor import (
    TENSOR_ARCHITECTURES,
    SliceTable,
    TensorChoice,
    can_sum,
    choose_tensor,
    predicted,
    share_out,
    slice_table,
)
from chorus.planning.wish import Wish, check_wish, hybrid_weights
from chorus.transport import catalog


def plan(facts: ModelFacts, nodes: Sequence[Node], links: Links, work: Workload, wish: Wish | None = None) -> Plan:
    """Raises DoesNotFit where memory is short, PlanError where the wish makes no sense. `nodes` are in rank order."""
    wish = wish or Wish()
    check_wish(facts, nodes, work, wish)
    tables = stage_tables(facts, nodes, work)
    if wish.parallel == "single":
        return _single(facts, tables, links, work, wish)
    if wish.parallel == "tensor" and (wish.strategy != "auto" or wish.weights):
        return _tensor(facts, tables, links, work, wish)
    if wish.parallel == "hybrid":
        return _hybrid(facts, tables, links, work, wish)
    if wish.strategy == "auto":
        return _auto(facts, tables, links, work, wish)
    # The first node leads and holds the last layers, so stages run against the order of ranks.
    stages = list(reversed(tables))
    if len(stages) > len(facts.layers):
        raise PlanError(
            f"{len(stages)} nodes cannot share {len(facts.layers)} layers: leave some out, or use the strategy auto"
        )
    bounds, notes = STRATEGIES[wish.strategy](facts, stages, wish)
    if bounds is None:
        raise _does_not_fit(facts, nodes, links, work, int(least_missing(stages)[0]), wish)
    chain = Chain(tuple(stages), bounds, predict_pipeline(facts, stages, links, work, bounds))
    return chain_plan(facts, chain, work, wish.strategy, notes=notes)


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
    hybrid = _auto_hybrid(facts, tables, links, work, wish)
    others = [found.prediction.request_seconds for found in (chain, tensor) if found]
    if hybrid and hybrid.seconds < min(others, default=float("inf")) * (1 - 1e-9):
        return chain_plan(facts, hybrid, work, "auto", _no_group(hybrid, tables))
    if chain is None and tensor is None:
        raise _nothing_fits(facts, tables, links, work, wish)
    if tensor and (chain is None or tensor.prediction.request_seconds < chain.seconds):
        notes = (f"the best pipeline would take {chain.seconds:.3g} s a request",) if chain else ()
        return tensor_plan(facts, _led(tensor, wish.leader), tables, work, "auto", notes)
    assert chain is not None
    excluded = _excluded(facts, chain, tables, links, work)
    heuristic = f"{len(tables)} nodes: found by a heuristic; up to {EXACT_NODES} the search is exact"
    notes = () if exact else (heuristic,)
    return chain_plan(facts, chain, work, "auto", excluded, notes)


def _auto_hybrid(
    facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish
) -> Chain | None:
    if (
        wish.parallel != "auto"
        or wish.transport not in catalog.carrying("hybrid")
        or facts.model_type not in TENSOR_ARCHITECTURES
    ):
        return None
    shares = [shares_by_weight(facts, weights) for weights in hybrid_weights(facts, len(tables), Wish())]
    return find_hybrid(facts, tables, links, work, wish.leader, shares)


def _no_group(chain: Chain, tables: Sequence[StageTable]) -> tuple[Excluded, ...]:
    used = {member.node.name for table in chain.tables if isinstance(table, GroupTable) for member in table.members}
    reason = "it has no equals to share a stage with, or one more stage would take longer"
    return tuple(Excluded(table.node.name, reason) for table in tables if table.node.name not in used)


def _hybrid(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, wish: Wish) -> Plan:
    """auto: groups of equal nodes, those that pay. Other strategies: all nodes, neighbours in the order given."""
    shares = [shares_by_weight(facts, weights) for weights in hybrid_weights(facts, len(tables), wish)]
    if wish.strategy == "auto":
        chain = find_hybrid(facts, tables, links, work, wish.leader, shares)
        if chain is None:
            groups = [of_equals(tables, len(some), wish.leader) for some in shares]
            raise _hybrid_misfit(facts, groups, shares, links, work)
        return chain_plan(facts, chain, work, "auto", _no_group(chain, tables))
    groups = [in_order(tables, len(some)) for some in shares]
    found: list[tuple[Chain, tuple[str, ...]]] = []
    for group, some in zip(groups, shares, strict=True):
        stages = group_tables(facts, group, some, links, work)[::-1]
        if len(stages) != len(group) or len(stages) > len(facts.layers):
            continue
        bounds, notes = STRATEGIES[wish.strategy](facts, stages, wish)
        if bounds is not None:
            prediction = predict_pipeline(facts, stages, group_links(stages, links), work, bounds)
            found.append((Chain(tuple(stages), bounds, prediction), notes))
    if not found:
        raise _hybrid_misfit(facts, groups, shares, links, work)
    best, notes = min(found, key=lambda one: one[0].seconds)
    return chain_plan(facts, best, work, wish.strategy, notes=notes)


def _hybrid_misfit(
    facts: ModelFacts,
    groups: Sequence[Sequence[Sequence[StageTable]]],
    shares: Sequence[Sequence[int]],
    links: Links,
    work: Workload,
) -> PlanError:
    """What lacks least; or why there are no stages at all."""
    enough = [(group, some) for group, some in zip(groups, shares, strict=True) if len(group) >= LEAST]
    if not enough:
        return PlanError(
            f"parallel hybrid needs {LEAST} groups of {LEAST} equal nodes at least: use parallel pipeline or tensor"
        )
    stages = [group_tables(facts, group, some, links, work) for group, some in enough]
    missing = [fewest_missing(some, None) for some in stages if len(some) >= LEAST]
    if not missing:
        return PlanError(
            "the nodes of a stage have no link that collectives run on, or would use different number types (a dtype "
            "for all mends that): use parallel pipeline"
        )
    if not (lacking := int(min(missing))):
        return PlanError(f"{len(facts.layers)} layers are too few for these stages: use parallel tensor")
    return DoesNotFit(lacking, ("use parallel pipeline", "add nodes"))


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
    return chain_plan(facts, best, work, wish.strategy, left_out)


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
            notes = (f"the shares alone would give {numbers(shares)}, which does not fit",)
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
    outcomes = [STRATEGIES[name](facts, stages, wish)[0] for name in STRATEGIES if name != "custom"]
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
