"""What a slice of every layer costs: tensor parallelism over weighted shares of the key/value groups. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from chorus.planning.chain_costs import Prediction
from chorus.planning.costs import (
    Links,
    Matrix,
    Node,
    StageTable,
    Workload,
    is_packed,
    model_effort,
    runs_only,
    stage_times,
)
from chorus.planning.cuts import evenest
from chorus.planning.facts import ModelFacts

TENSOR_ARCHITECTURES = frozenset(
    {
        *("llama", "mistral", "ministral3", "qwen2", "qwen3", "qwen3_moe", "phi", "phi3", "gemma", "gemma2"),
        *("gemma3", "gemma3_text", "gpt_oss", "deepseek_v3", "glm4_moe", "granite", "minimax", "olmo2", "olmo3"),
        *("seed_oss", "smollm3"),
    }
)
"""Model types that can be divided by weights."""
WHOLE_CACHES = frozenset({"deepseek_v3"})
"""Latent attention: all heads read the same cache, so that every rank keeps it whole."""
SUMS_PER_LAYER = 2


@dataclass(frozen=True)
class SliceTable:
    """Over all shares g of one node, from no group to all of them."""

    node: Node
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
    tables: tuple[SliceTable, ...]
    shares: tuple[int, ...]
    prediction: Prediction


def slice_table(facts: ModelFacts, whole: StageTable, work: Workload) -> SliceTable:
    """From the node's table for the whole model: what scales with the share, and what every rank holds."""
    layers, groups, node = len(facts.layers), facts.groups, whole.node
    ends = [
        (facts.embedding + facts.head + facts.around).bytes_under(policy) for policy in whole.policies
    ]  # held in full by every rank
    bodies = [sum(layer.weights.bytes_under(policy) for layer in facts.layers) for policy in whole.policies]
    cache = float(whole.cache[0, layers])
    activations = int(whole.activations[0, layers])
    shares = [g / groups for g in range(groups + 1)]
    room = node.memory - activations - work.reserve
    held = tuple(int(cache if facts.model_type in WHOLE_CACHES else cache * share) for share in shares)
    unpacked = tuple(bodies[0] * share + ends[0] + kept <= room for kept, share in zip(held, shares, strict=True))
    weights = tuple(
        int(bodies[not fits] * share + ends[not fits]) for fits, share in zip(unpacked, shares, strict=True)
    )
    launches = node.layer_seconds * layers
    effort = model_effort(facts, work)
    times = [
        [float(matrix[0, layers]) - launches for matrix in stage_times(node, effort, costs, is_packed(facts, policy))]
        for policy, costs in zip(whole.policies, whole.costs, strict=True)
    ]
    return SliceTable(
        node=node,
        unpacked=unpacked,
        weights=weights,
        cache=held,
        activations=activations,
        need=tuple(w + c + activations + work.reserve for w, c in zip(weights, held, strict=True)),
        prefill=tuple(times[not fits][0] * share + launches for fits, share in zip(unpacked, shares, strict=True)),
        decode=tuple(times[not fits][1] * share + launches for fits, share in zip(unpacked, shares, strict=True)),
    )


def choose_tensor(
    facts: ModelFacts, wholes: Sequence[StageTable], links: Links, work: Workload, leader: str | None, exact: bool
) -> TensorChoice | None:
    """The quickest set of nodes and shares; of many nodes, only the fastest few, fewer and fewer, are tried."""
    tables = [slice_table(facts, whole, work) for whole in wholes]
    if exact:
        sets = [chosen for count in range(2, len(tables) + 1) for chosen in combinations(tables, count)]
    else:
        fastest = sorted(tables, key=lambda table: (table.decode[-1], table.node.name))
        sets = [tuple(fastest[:count]) for count in range(2, len(fastest) + 1)]
    best: TensorChoice | None = None
    for chosen in sets:
        names = [table.node.name for table in chosen]
        if len(chosen) > facts.groups or (leader is not None and leader not in names):
            continue
        candidate = share_out(facts, chosen, links, work)
        if candidate and (
            best is None or candidate.prediction.request_seconds < best.prediction.request_seconds * (1 - 1e-9)
        ):
            best = candidate
    return best


def share_out(facts: ModelFacts, tables: Sequence[SliceTable], links: Links, work: Workload) -> TensorChoice | None:
    """The best shares for these nodes; None where they do not fit or cannot reach each other."""
    sums = _sums(facts, tables, links, work)
    if sums is None:
        return None
    prefill = [table.by_run(table.prefill) for table in tables]
    decode = [table.by_run(table.decode) for table in tables]
    bounds = evenest(prefill, decode, work.chunks, work.output)
    if bounds is None:
        return None
    shares = tuple(b - a for a, b in pairwise(bounds))
    return TensorChoice(tuple(tables), shares, predict_tensor(tables, shares, sums, work))


def predicted(
    facts: ModelFacts, tables: Sequence[SliceTable], shares: Sequence[int], links: Links, work: Workload
) -> TensorChoice | None:
    """Of shares that were laid down; None where they do not fit or the nodes cannot reach each other."""
    sums = _sums(facts, tables, links, work)
    if sums is None or any(table.need[share] > table.node.memory for table, share in zip(tables, shares, strict=True)):
        return None
    return TensorChoice(tuple(tables), tuple(shares), predict_tensor(tables, shares, sums, work))


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
    """Of one layer, in a prefill chunk and in a decode step; the slowest link sets the pace. None where there is one
    that no collective runs on.
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
    prefill, decode = (SUMS_PER_LAYER * one for one in seconds)
    return prefill, decode
