"""From a model, nodes and links to a plan. A pure function; see `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chorus.planning import problem as problems
from chorus.planning.build import chain_plan, tensor_plan
from chorus.planning.costs import Links, Machine, StageTable, Workload
from chorus.planning.cuts import apportion, least_missing
from chorus.planning.facts import ModelFacts
from chorus.planning.hints import hints_for
from chorus.planning.hybrid import (
    GroupTable,
    between_groups,
    find_hybrid,
    group_tables,
    in_order,
    of_equals,
    shares_by_weight,
)
from chorus.planning.plan import DoesNotFit, Excluded, Plan, PlanError, numbers, size
from chorus.planning.problem import LEAST, PlanRequest, Problem, hybrid_weights
from chorus.planning.search import EXACT_NODES, Chain, best_split, chain_of, fewest_missing, find_chain
from chorus.planning.strategies import METHODS
from chorus.planning.tensor import (
    SliceTable,
    TensorChoice,
    can_sum,
    choose_tensor,
    share_out,
    slice_tables,
    with_shares,
)
from chorus.transport import catalog


def plan(
    facts: ModelFacts,
    nodes: Sequence[Machine],
    links: Links,
    work: Workload,
    request: PlanRequest | None = None,
) -> Plan:
    """The best plan that there is under the cost model; `nodes` are in rank order.

    Raises DoesNotFit where memory is short, PlanError where the request makes no sense.
    """
    request = request or PlanRequest()
    problem = Problem(facts, nodes, links, work, request)
    problems.check(problem)
    if request.parallel == "single":
        return _single(problem)
    if request.parallel == "tensor" and (request.strategy != "auto" or request.weights):
        return _tensor(problem)
    if request.parallel == "hybrid":
        return _hybrid(problem)
    if request.strategy == "auto":
        return _auto(problem)
    # The first node leads and holds the last layers, so stages run against the order of ranks.
    stages = problem.tables[::-1]
    if len(stages) > problem.layers:
        raise PlanError(
            f"{len(stages)} nodes cannot share {problem.layers} layers: leave some out, or use the strategy auto"
        )
    bounds, notes = METHODS[request.strategy].cut(problem, stages)
    if bounds is None:
        raise _does_not_fit(problem, int(least_missing(stages)[0]))
    return chain_plan(problem, chain_of(problem, stages, bounds), notes=notes)


def _auto(problem: Problem) -> Plan:
    nodes, wanted = len(problem.nodes), problem.request.parallel
    exact = nodes <= EXACT_NODES
    chain = None
    if wanted != "tensor":
        chain = find_chain(problem, problem.tables)
        if not exact:
            chain = _better(chain, _fixed_chains(problem))
    tensor = None
    if wanted != "pipeline" and problem.rule and nodes > 1:
        tensor = choose_tensor(problem, exact)
    hybrid = _auto_hybrid(problem)
    others = [found.prediction.request_seconds for found in (chain, tensor) if found]
    if hybrid and hybrid.seconds < min(others, default=float("inf")) * (1 - 1e-9):
        return chain_plan(problem, hybrid, _no_group(problem, hybrid))
    if chain is None and tensor is None:
        raise _nothing_fits(problem)
    if tensor and (chain is None or tensor.prediction.request_seconds < chain.seconds):
        notes = (f"the best pipeline would take {chain.seconds:.3g} s a request",) if chain else ()
        return tensor_plan(problem, _led(tensor, problem.request.leader), notes)
    assert chain is not None
    heuristic = f"{nodes} nodes: found by a heuristic; up to {EXACT_NODES} the search is exact"
    return chain_plan(problem, chain, _excluded(problem, chain), () if exact else (heuristic,))


def _auto_hybrid(problem: Problem) -> Chain | None:
    request = problem.request
    if request.parallel != "auto" or request.transport not in catalog.carrying("hybrid") or not problem.rule:
        return None
    shares = [shares_by_weight(problem.facts, weights) for weights in hybrid_weights(problem, PlanRequest())]
    return find_hybrid(problem, shares)


def _no_group(problem: Problem, chain: Chain) -> tuple[Excluded, ...]:
    used = {member.node.name for table in chain.tables if isinstance(table, GroupTable) for member in table.members}
    reason = "it has no equals to share a stage with, or one more stage would take longer"
    return tuple(Excluded(node.name, reason) for node in problem.nodes if node.name not in used)


def _hybrid(problem: Problem) -> Plan:
    """A plan with stages of several nodes: by auto of equal nodes, as many as pay; else of all, neighbours together."""
    tables, request = problem.tables, problem.request
    shares = [shares_by_weight(problem.facts, weights) for weights in hybrid_weights(problem, request)]
    if request.strategy == "auto":
        chain = find_hybrid(problem, shares)
        if chain is None:
            raise _hybrid_misfit(problem, [of_equals(tables, len(some), request.leader) for some in shares], shares)
        return chain_plan(problem, chain, _no_group(problem, chain))
    groups = [in_order(tables, len(some)) for some in shares]
    found: list[tuple[Chain, tuple[str, ...]]] = []
    for group, some in zip(groups, shares, strict=True):
        stages = group_tables(problem, group, some)[::-1]
        if len(stages) != len(group) or len(stages) > problem.layers:
            continue
        bounds, notes = METHODS[request.strategy].cut(problem, stages)
        if bounds is not None:
            found.append((chain_of(between_groups(problem, stages), stages, bounds), notes))
    if not found:
        raise _hybrid_misfit(problem, groups, shares)
    best, notes = min(found, key=lambda one: one[0].seconds)
    return chain_plan(problem, best, notes=notes)


def _hybrid_misfit(
    problem: Problem, groups: Sequence[Sequence[Sequence[StageTable]]], shares: Sequence[Sequence[int]]
) -> PlanError:
    """What is missing where least is missing; or why there are no stages at all."""
    enough = [(group, some) for group, some in zip(groups, shares, strict=True) if len(group) >= LEAST]
    if not enough:
        return PlanError(
            f"parallel hybrid needs {LEAST} groups of {LEAST} equal nodes at least: use parallel pipeline or tensor"
        )
    stages = [group_tables(problem, group, some) for group, some in enough]
    missing = [fewest_missing(some, None) for some in stages if len(some) >= LEAST]
    if not missing:
        return PlanError(
            "the nodes of a stage have no link that collectives run on, or would use different number types (a dtype "
            "for all mends that): use parallel pipeline"
        )
    if not (lacking := int(min(missing))):
        return PlanError(f"{problem.layers} layers are too few for these stages: use parallel tensor")
    return DoesNotFit(lacking, ("use parallel pipeline", "add nodes"))


def _led(choice: TensorChoice, leader: str | None) -> TensorChoice:
    """The choice in the order of ranks: the leader, then the largest share first."""
    pairs = sorted(
        zip(choice.tables, choice.shares, strict=True),
        key=lambda pair: (pair[0].node.name != leader, -pair[1], pair[0].node.name),
    )
    return replace(choice, tables=tuple(table for table, _ in pairs), shares=tuple(share for _, share in pairs))


def _single(problem: Problem) -> Plan:
    able = [table for table in problem.tables if problem.request.leader in (None, table.node.name)]
    best = _better(None, [chain for table in able if (chain := best_split(problem, [table]))])
    if best is None:
        missing = min(float(table.need[0, -1]) - table.node.memory for table in able)
        raise _does_not_fit(replace(problem, nodes=[table.node for table in able]), int(missing))
    reason = "one node was asked for"
    left_out = tuple(Excluded(table.node.name, reason) for table in problem.tables if table not in best.tables)
    return chain_plan(problem, best, left_out)


def _tensor(problem: Problem) -> Plan:
    """A plan with all nodes in the order given and shares by the strategy; what was laid down is kept or refused."""
    request, slices = problem.request, slice_tables(problem)
    laid_down = request.weights or (request.proportions if request.strategy == "custom" else None)
    weights: Sequence[float] | None = laid_down
    if weights is None and (weigh := METHODS[request.strategy].weigh):
        weights = [weigh(node) for node in problem.nodes]
    choice = share_out(problem, slices) if weights is None else None
    notes: tuple[str, ...] = ()
    if weights is not None:
        shares = apportion(weights, problem.facts.groups, [node.name for node in problem.nodes])
        choice = with_shares(problem, slices, shares)
        if choice is None and not laid_down:
            choice = share_out(problem, slices)
            notes = (f"the shares alone would give {numbers(shares)}, which does not fit",)
    if choice is None:
        raise _tensor_misfit(problem, slices, weights)
    return tensor_plan(problem, choice, notes)


def _tensor_misfit(problem: Problem, slices: Sequence[SliceTable], weights: Sequence[float] | None) -> PlanError:
    if not can_sum(slices, problem.links):
        return PlanError("these nodes have no link that collectives run on: use parallel pipeline")
    if len(slices) > problem.facts.groups:  # each needs a group: leave out those that have the least room
        slices = sorted(slices, key=lambda table: -table.node.memory)[: problem.facts.groups]
    names = [table.node.name for table in slices]
    shares = apportion(weights or [1.0] * len(slices), problem.facts.groups, names)
    short = [table.need[share] - table.node.memory for table, share in zip(slices, shares, strict=True)]
    return DoesNotFit(max(1, sum(max(0, missing) for missing in short)), ("use parallel pipeline", "add a node"))


def _nothing_fits(problem: Problem) -> PlanError:
    if problem.request.parallel == "tensor":
        return _tensor_misfit(problem, slice_tables(problem), None)
    return _does_not_fit(problem, int(fewest_missing(problem.tables, problem.request.leader)))


def _fixed_chains(problem: Problem) -> list[Chain]:
    """Chains of all nodes in the order given, cut by each simple strategy: a heuristic must never lose to those."""
    stages = problem.tables[::-1]
    if len(stages) > problem.layers or problem.request.leader not in (None, stages[-1].node.name):
        return []
    cuts = [method.cut(problem, stages)[0] for name, method in METHODS.items() if name != "custom"]
    chains = [chain_of(problem, stages, bounds) for bounds in cuts if bounds is not None]
    best = best_split(problem, stages)
    return [*chains, best] if best else chains


def _better(chain: Chain | None, others: Sequence[Chain]) -> Chain | None:
    return min([*([chain] if chain else []), *others], key=lambda found: found.seconds, default=None)


def _does_not_fit(problem: Problem, missing: int) -> DoesNotFit:
    request = problem.request

    def fits(changed: Problem) -> bool:
        tables = changed.tables
        if request.parallel == "single":
            return any(bool(table.fits[0, -1]) for table in tables)
        if request.strategy != "auto":
            return len(tables) <= problem.layers and least_missing(tables[::-1])[0] == 0
        return fewest_missing(tables, request.leader) == 0

    return DoesNotFit(max(1, missing), hints_for(problem, fits))


def _excluded(problem: Problem, chain: Chain) -> tuple[Excluded, ...]:
    """Each idle node, with what a request would take if it had to join."""
    left_out = []
    for table in problem.tables:
        if table in chain.tables:
            continue
        places = range(len(chain.tables)) if len(problem.nodes) <= EXACT_NODES else range(1)
        orders = [[*chain.tables[:place], table, *chain.tables[place:]] for place in places]
        joined = _better(None, [found for order in orders if (found := best_split(problem, order))])
        if len(chain.tables) == problem.layers:
            reason = "there is no layer left for it"
        elif joined is None:
            reason = f"a layer does not fit in its {size(table.node.memory)} beside cache and reserve"
        else:
            reason = f"with it a request would take {joined.seconds:.3g} s instead of {chain.seconds:.3g} s"
        left_out.append(Excluded(table.node.name, reason))
    return tuple(left_out)
