"""What a slice of every layer costs: tensor parallelism over weighted shares of the key/value groups. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from chorus.models.architectures import TensorRule, tensor_rule
from chorus.planning.costs import (
    Links,
    Machine,
    Matrix,
    Prediction,
    StageTable,
    Workload,
    head_bytes,
    model_effort,
    runs_only,
    speed_of,
    stage_times,
)
from chorus.planning.cuts import evenest
from chorus.planning.facts import ModelFacts
from chorus.planning.problem import Problem


def rule_of(facts: ModelFacts) -> TensorRule:
    """How this model is divided inside its layers. Asked only where `Problem.rule` is there."""
    rule = tensor_rule(facts.model_type)
    assert rule is not None, facts.model_type
    return rule


def cache_part(facts: ModelFacts, part: float) -> float:
    """Which part of the cache a rank keeps that holds such a part of every layer."""
    return part if rule_of(facts).divides_cache else 1.0


@dataclass(frozen=True)
class SliceTable:
    """What each share of the layers costs one node, from no key/value group to all of them."""

    node: Machine
    unpacked: tuple[bool, ...]
    weights: tuple[int, ...]
    cache: tuple[int, ...]
    activations: int
    need: tuple[int, ...]
    prefill: tuple[float, ...]
    decode: tuple[float, ...]

    def by_run(self, values: Sequence[float]) -> Matrix:
        """As a matrix over runs of groups, so that dividing groups is cutting a chain; infinite where too large."""
        groups = len(values) - 1
        counts = np.arange(groups + 1)[None, :] - np.arange(groups + 1)[:, None]
        fits = np.asarray(self.need) <= self.node.memory
        return runs_only(np.asarray(values, dtype=np.float64)[np.maximum(counts, 0)], fits[np.maximum(counts, 0)])


@dataclass(frozen=True)
class TensorChoice:
    """Nodes that divide every layer among them, their shares, and what a request takes then."""

    tables: tuple[SliceTable, ...]
    shares: tuple[int, ...]
    prediction: Prediction


def slice_table(facts: ModelFacts, whole: StageTable, work: Workload) -> SliceTable:
    """From the node's table for the whole model: what scales with the share, and what every rank holds."""
    layers, groups, node = len(facts.layers), facts.groups, whole.node
    ends = [  # held in full by every rank
        facts.embedding.looked_up_under(policy) + head_bytes(facts, policy) + facts.around.bytes_under(policy)
        for policy in whole.policies
    ]
    bodies = [sum(layer.weights.bytes_under(policy) for layer in facts.layers) for policy in whole.policies]
    cache = float(whole.cache[0, layers])
    activations = int(whole.activations[0, layers])
    shares = [g / groups for g in range(groups + 1)]
    room = node.memory - activations - work.reserve
    held = tuple(int(cache * cache_part(facts, share)) for share in shares)
    unpacked = tuple(bodies[0] * share + ends[0] + kept <= room for kept, share in zip(held, shares, strict=True))
    weights = tuple(
        int(bodies[not fits] * share + ends[not fits]) for fits, share in zip(unpacked, shares, strict=True)
    )
    effort = model_effort(facts, work)
    speeds = [speed_of(facts, node, policy) for policy in whole.policies]
    launches = [speed.layer_seconds * layers for speed in speeds]
    times = [
        [float(matrix[0, layers]) - idle for matrix in stage_times(node, effort, costs, speed)]
        for speed, idle, costs in zip(speeds, launches, whole.costs, strict=True)
    ]

    def seconds(phase: int) -> tuple[float, ...]:
        chosen = zip(unpacked, shares, strict=True)
        return tuple(times[not fits][phase] * share + launches[not fits] for fits, share in chosen)

    return SliceTable(
        node=node,
        unpacked=unpacked,
        weights=weights,
        cache=held,
        activations=activations,
        need=tuple(w + c + activations + work.reserve for w, c in zip(weights, held, strict=True)),
        prefill=seconds(0),
        decode=seconds(1),
    )


def slice_tables(problem: Problem) -> list[SliceTable]:
    """One for each node, in their order."""
    return [slice_table(problem.facts, whole, problem.work) for whole in problem.tables]


def choose_tensor(problem: Problem, exact: bool) -> TensorChoice | None:
    """The quickest set of nodes and shares; of many nodes, only the fastest few, fewer and fewer, are tried."""
    tables, leader = slice_tables(problem), problem.request.leader
    if exact:
        sets = [chosen for count in range(2, len(tables) + 1) for chosen in combinations(tables, count)]
    else:
        fastest = sorted(tables, key=lambda table: (table.decode[-1], table.node.name))
        sets = [tuple(fastest[:count]) for count in range(2, len(fastest) + 1)]
    best: TensorChoice | None = None
    for chosen in sets:
        names = [table.node.name for table in chosen]
        if len(chosen) > problem.facts.groups or (leader is not None and leader not in names):
            continue
        candidate = share_out(problem, chosen)
        if candidate and (
            best is None or candidate.prediction.request_seconds < best.prediction.request_seconds * (1 - 1e-9)
        ):
            best = candidate
    return best


def share_out(problem: Problem, tables: Sequence[SliceTable]) -> TensorChoice | None:
    """The best shares for these nodes; None where they do not fit or cannot reach each other."""
    work = problem.work
    sums = _sums(problem.facts, tables, problem.links, work)
    if sums is None:
        return None
    prefill = [table.by_run(table.prefill) for table in tables]
    decode = [table.by_run(table.decode) for table in tables]
    bounds = evenest(prefill, decode, work.chunks, work.output)
    if bounds is None:
        return None
    shares = tuple(b - a for a, b in pairwise(bounds))
    return TensorChoice(tuple(tables), shares, predict_tensor(tables, shares, sums, work))


def with_shares(problem: Problem, tables: Sequence[SliceTable], shares: Sequence[int]) -> TensorChoice | None:
    """The nodes with shares that were laid down; None where they do not fit or cannot reach each other."""
    sums = _sums(problem.facts, tables, problem.links, problem.work)
    if sums is None or any(table.need[share] > table.node.memory for table, share in zip(tables, shares, strict=True)):
        return None
    return TensorChoice(tuple(tables), tuple(shares), predict_tensor(tables, shares, sums, problem.work))


def can_sum(tables: Sequence[SliceTable | StageTable], links: Links) -> bool:
    """Whether a collective can run between all of these nodes."""
    return all(links.between(a.node.name, b.node.name).all_reduce is not None for a, b in combinations(tables, 2))


def predict_tensor(
    tables: Sequence[SliceTable], shares: Sequence[int], sums: tuple[float, float], work: Workload
) -> Prediction:
    chunk = max(table.prefill[share] for table, share in zip(tables, shares, strict=True)) + sums[0]
    step = max(table.decode[share] for table, share in zip(tables, shares, strict=True)) + sums[1]
    return Prediction(work.chunks * chunk, step, sums[1], work.chunks * chunk + work.output * step)


def _sums(facts: ModelFacts, tables: Sequence[SliceTable], links: Links, work: Workload) -> tuple[float, float] | None:
    """Seconds that a prefill chunk and a decode step spend in sums over the ranks."""
    one = sums_of_layer(facts, tables, links, work)
    return (one[0] * len(facts.layers), one[1] * len(facts.layers)) if one else None


def sums_of_layer(
    facts: ModelFacts, tables: Sequence[SliceTable | StageTable], links: Links, work: Workload
) -> tuple[float, float] | None:
    """Seconds that one layer of a prefill chunk and of a decode step spends in sums; the slowest link sets the pace.
    None where there is a link that no collective runs on.
    """
    found = [links.between(a.node.name, b.node.name) for a, b in combinations(tables, 2)]
    latencies = [link.all_reduce for link in found]
    if any(latency is None for latency in latencies):
        return None
    latency = max(latency for latency in latencies if latency is not None)
    ranks = len(tables)
    bandwidth = min(link.bandwidth for link in found)
    width = facts.hidden * 4 * 2 * (ranks - 1) / ranks / bandwidth
    seconds = (latency + tokens * width for tokens in (work.chunk_tokens, work.concurrency))
    prefill, decode = (rule_of(facts).sums * one for one in seconds)
    return prefill, decode
