"""From what the search found to a plan that people can read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chorus.cluster.costs import Prediction, StageTable, Workload
from chorus.cluster.facts import ModelFacts
from chorus.cluster.plan import Excluded, Parallel, Plan, RankPlan, size
from chorus.cluster.planner_search import Chain
from chorus.cluster.planner_tensor import TensorChoice


def pipeline_plan(
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
        for rank, (table, share) in enumerate(zip(choice.tables, choice.shares, strict=True))
    ]
    used = {table.node.name for table in choice.tables}
    slower = "more nodes would wait longer for each other than they save"
    left_out = tuple(Excluded(table.node.name, slower) for table in tables if table.node.name not in used)
    return Plan(
        model=facts.name,
        model_layers=len(facts.layers),
        strategy=strategy,
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
