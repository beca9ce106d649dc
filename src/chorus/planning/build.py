"""From what the search found to a plan that people can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from chorus.planning.chain_costs import Prediction
from chorus.planning.costs import Node, StageTable, Workload
from chorus.planning.facts import ModelFacts
from chorus.planning.hybrid import GroupTable, sum_seconds
from chorus.planning.plan import Excluded, Parallel, Plan, RankPlan, size
from chorus.planning.search import Chain
from chorus.planning.tensor import TensorChoice
from chorus.platform.dtype import DtypePolicy

_WAITS: dict[Parallel, str] = {
    "pipeline": "the links between ranks",
    "tensor": "the sums over all ranks",
    "hybrid": "the sums within stages and the links between them",
}


def chain_plan(
    facts: ModelFacts,
    chain: Chain,
    work: Workload,
    strategy: str,
    excluded: tuple[Excluded, ...] = (),
    notes: tuple[str, ...] = (),
) -> Plan:
    """Of stages that have one rank each, or several."""
    stages = reversed(list(zip(chain.tables, pairwise(chain.bounds), strict=True)))
    held = [(*member, run) for table, run in stages for member in _members(facts, table)]
    ranks = [
        _rank(
            rank,
            table.node,
            run,
            share,
            table.policy(*run),
            (int(table.weights[run]), int(table.cache[run]), int(table.activations[run]), work.reserve),
            (float(table.prefill[run]), float(table.decode[run])),
        )
        for rank, (table, share, run) in enumerate(held)
    ]
    parallel: Parallel = "single" if len(ranks) == 1 else "pipeline" if len(ranks) == len(chain.tables) else "hybrid"
    between = chain.prediction.link_seconds + sum_seconds(chain)
    prediction = replace(chain.prediction, link_seconds=between)
    return _plan(facts, parallel, ranks, work, strategy, prediction, excluded, notes)


def tensor_plan(
    facts: ModelFacts,
    choice: TensorChoice,
    tables: Sequence[StageTable],
    work: Workload,
    strategy: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Ranks in the order of the choice; nodes that it leaves out are said to be."""
    policies = {table.node.name: table.policies for table in tables}
    ranks = [
        _rank(
            rank,
            table.node,
            (0, len(facts.layers)),
            share,
            policies[table.node.name][not table.unpacked[share]],
            (table.weights[share], table.cache[share], table.activations, work.reserve),
            (table.prefill[share], table.decode[share]),
        )
        for rank, (table, share) in enumerate(zip(choice.tables, choice.shares, strict=True))
    ]
    used = {table.node.name for table in choice.tables}
    slower = "more nodes would wait longer for each other than they save"
    left_out = tuple(Excluded(table.node.name, slower) for table in tables if table.node.name not in used)
    return _plan(facts, "tensor", ranks, work, strategy, choice.prediction, left_out, notes)


def _members(facts: ModelFacts, table: StageTable) -> Iterator[tuple[StageTable, int]]:
    if isinstance(table, GroupTable):
        yield from zip(table.members, table.shares, strict=True)
    else:
        yield table, facts.groups


def _rank(
    rank: int,
    node: Node,
    run: tuple[int, int],
    share: int,
    policy: DtypePolicy,
    held: tuple[int, int, int, int],
    seconds: tuple[float, float],
) -> RankPlan:
    """`held`: bytes of weights, cache and activations, and the reserve. `seconds`: of a prefill chunk and a step."""
    dtype = policy.dtype, policy.dequantize
    return RankPlan(rank, node.name, run[0], run[1] - 1, share, *dtype, *held, node.memory, *seconds)


def _plan(
    facts: ModelFacts,
    parallel: Parallel,
    ranks: Sequence[RankPlan],
    work: Workload,
    strategy: str,
    prediction: Prediction,
    excluded: tuple[Excluded, ...],
    notes: tuple[str, ...],
) -> Plan:
    return Plan(
        model=facts.name,
        model_layers=len(facts.layers),
        strategy=strategy,
        parallel=parallel,
        ranks=tuple(ranks),
        workload=work,
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
