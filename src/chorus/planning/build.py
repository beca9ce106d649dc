"""From what the search found to a plan that people can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from chorus.planning.costs import Machine, Prediction, StageTable
from chorus.planning.facts import ModelFacts
from chorus.planning.hybrid import GroupTable, sum_seconds
from chorus.planning.plan import Excluded, Parallel, Plan, RankPlan, size
from chorus.planning.problem import Problem
from chorus.planning.search import Chain
from chorus.planning.tensor import TensorChoice
from chorus.platform.accelerator.dtype import DtypePolicy

_WAITS: dict[Parallel, str] = {
    "pipeline": "the links between ranks",
    "tensor": "the sums over all ranks",
    "hybrid": "the sums within stages and the links between them",
}


def chain_plan(
    problem: Problem, chain: Chain, excluded: tuple[Excluded, ...] = (), notes: tuple[str, ...] = ()
) -> Plan:
    """The plan of a chain whose stages have one rank each, or several."""
    stages = reversed(list(zip(chain.tables, pairwise(chain.bounds), strict=True)))
    held = [(*member, run) for table, run in stages for member in _members(problem.facts, table)]
    ranks = [
        _rank(
            rank,
            table.node,
            run,
            share,
            table.policy(*run),
            problem.facts.stored_dtype,
            (int(table.weights[run]), int(table.cache[run]), int(table.activations[run]), problem.work.reserve),
            (float(table.prefill[run]), float(table.decode[run])),
        )
        for rank, (table, share, run) in enumerate(held)
    ]
    parallel: Parallel = "single" if len(ranks) == 1 else "pipeline" if len(ranks) == len(chain.tables) else "hybrid"
    between = chain.prediction.link_seconds + sum_seconds(chain)
    prediction = replace(chain.prediction, link_seconds=between)
    return _plan(problem, parallel, ranks, prediction, excluded, notes)


def tensor_plan(problem: Problem, choice: TensorChoice, notes: tuple[str, ...] = ()) -> Plan:
    """The plan of nodes that divide every layer: ranks in the order of the choice; nodes it leaves out are named."""
    policies = {table.node.name: table.policies for table in problem.tables}
    ranks = [
        _rank(
            rank,
            table.node,
            (0, problem.layers),
            share,
            policies[table.node.name][not table.unpacked[share]],
            problem.facts.stored_dtype,
            (table.weights[share], table.cache[share], table.activations, problem.work.reserve),
            (table.prefill[share], table.decode[share]),
        )
        for rank, (table, share) in enumerate(zip(choice.tables, choice.shares, strict=True))
    ]
    used = {table.node.name for table in choice.tables}
    slower = "more nodes would wait longer for each other than they save"
    left_out = tuple(Excluded(node.name, slower) for node in problem.nodes if node.name not in used)
    return _plan(problem, "tensor", ranks, choice.prediction, left_out, notes)


def _members(facts: ModelFacts, table: StageTable) -> Iterator[tuple[StageTable, int]]:
    if isinstance(table, GroupTable):
        yield from zip(table.members, table.shares, strict=True)
    else:
        yield table, facts.groups


def _rank(
    rank: int,
    node: Machine,
    run: tuple[int, int],
    share: int,
    policy: DtypePolicy,
    stored: str,
    held: tuple[int, int, int, int],
    seconds: tuple[float, float],
) -> RankPlan:
    """One rank of a plan. `held` is bytes of weights, cache and activations, and the reserve; `seconds` are those of a
    prefill chunk and of a decode step.
    """
    dtype = policy.dtype, policy.form
    computes_in = stored if policy.dtype == "stored" else policy.dtype
    return RankPlan(rank, node.name, run[0], run[1] - 1, share, *dtype, *held, node.memory, *seconds, computes_in)


def _plan(
    problem: Problem,
    parallel: Parallel,
    ranks: Sequence[RankPlan],
    prediction: Prediction,
    excluded: tuple[Excluded, ...],
    notes: tuple[str, ...],
) -> Plan:
    return Plan(
        model=problem.facts.name,
        model_layers=problem.layers,
        strategy=problem.request.strategy,
        parallel=parallel,
        ranks=tuple(ranks),
        workload=problem.work,
        prediction=prediction,
        limit=_limit(ranks, prediction, parallel),
        excluded=excluded,
        notes=notes,
    )


def _limit(ranks: Sequence[RankPlan], prediction: Prediction, parallel: Parallel) -> str:
    """Where most of a token's time goes, and which memory is fullest."""
    slowest = max(ranks, key=lambda rank: rank.step_seconds)
    parts = {f"reading weights and cache on {slowest.node}": slowest.step_seconds}
    if parallel in _WAITS:
        parts[_WAITS[parallel]] = prediction.link_seconds
    name, seconds = max(parts.items(), key=lambda item: item[1])
    fullest = min(ranks, key=lambda rank: rank.headroom_bytes)
    share = round(100 * seconds / prediction.token_seconds)
    return f"{name}, {share} % of each token; the least free memory is {size(fullest.headroom_bytes)} on {fullest.node}"
