"""Stages of several machines that divide their layers among them: tensor inside pipeline. Pure.

A group of machines is a stage like any other once its costs are known: as slow as its slowest member, plus the sums of
its layers. So the search for chains works on groups as it does on nodes. All stages have the same number of members,
with the same shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from chorus.planning.costs import (
    Links,
    LinkSpeed,
    Matrix,
    StageTable,
    Workload,
    model_effort,
    speed_of,
    stage_times,
    sums_over_runs,
)
from chorus.planning.cuts import apportion
from chorus.planning.facts import ModelFacts
from chorus.planning.problem import LEAST, Problem
from chorus.planning.search import Chain, find_chain
from chorus.planning.tensor import cache_part, sums_of_layer


@dataclass(frozen=True, eq=False)
class GroupTable(StageTable):
    """Machines that share a run of layers, as one stage. Its node is the first of them, with what the group lacks in
    memory where one of them lacks it.
    """

    members: tuple[StageTable, ...] = ()
    """The tables of the machines, each for its own share of the layers."""
    shares: tuple[int, ...] = ()
    sums: Matrix | None = None
    """Seconds of a decode step that are spent in sums; the other figures have them already."""


def shares_by_weight(facts: ModelFacts, weights: Sequence[float]) -> tuple[int, ...]:
    return apportion(weights, facts.groups, [f"{member:04}" for member in range(len(weights))])


def in_order(tables: Sequence[StageTable], members: int) -> list[list[StageTable]]:
    """Groups of neighbours in the order of ranks."""
    return [list(tables[first : first + members]) for first in range(0, len(tables), members)]


def of_equals(tables: Sequence[StageTable], members: int, leader: str | None) -> list[list[StageTable]]:
    """Groups of machines that are alike: the others would wait for the slowest. Whoever has no equals is left out."""
    kinds: dict[object, list[StageTable]] = {}
    for table in sorted(tables, key=lambda table: (table.node.name != leader, table.node.name)):
        kinds.setdefault(replace(table.node, name=""), []).append(table)
    return [group for alike in kinds.values() for group in in_order(alike[: len(alike) // members * members], members)]


def group_tables(problem: Problem, groups: Sequence[Sequence[StageTable]], shares: Sequence[int]) -> list[GroupTable]:
    """The stages that those groups make whose members can sum: over their links, and in one number type."""
    found = (_group_table(problem, group, shares) for group in groups)
    return [table for table in found if table is not None]


def group_links(groups: Sequence[GroupTable], links: Links) -> Links:
    """The links between groups. Each member passes activations to its like, so the slowest of their links counts."""
    if not links.pairs:
        return links
    pairs = []
    for one, other in combinations(groups, 2):
        alike = [links.between(a.node.name, b.node.name) for a, b in zip(one.members, other.members, strict=True)]
        slowest = LinkSpeed(max(link.latency for link in alike), min(link.bandwidth for link in alike))
        pairs.append((one.node.name, other.node.name, slowest))
    return Links(links.default, tuple(pairs))


def between_groups(problem: Problem, groups: Sequence[GroupTable]) -> Problem:
    """The same problem with these groups for nodes: their links are those between groups."""
    return replace(problem, links=group_links(groups, problem.links))


def find_hybrid(problem: Problem, shares: Sequence[Sequence[int]]) -> Chain | None:
    """The quickest chain of groups of equal machines, divided by one of these lists of shares; None where none fits."""
    chains = []
    for some in shares:
        groups = group_tables(problem, of_equals(problem.tables, len(some), problem.request.leader), some)
        if len(groups) >= LEAST:
            chains.append(find_chain(between_groups(problem, groups), groups, LEAST))
    return min((chain for chain in chains if chain), key=lambda chain: chain.seconds, default=None)


def sum_seconds(chain: Chain) -> float:
    """Seconds of a decode step that are spent in sums inside the stages."""
    runs = zip(chain.tables, pairwise(chain.bounds), strict=True)
    return sum(float(t.sums[run]) for t, run in runs if isinstance(t, GroupTable) and t.sums is not None)


def _group_table(problem: Problem, wholes: Sequence[StageTable], shares: Sequence[int]) -> GroupTable | None:
    facts, work = problem.facts, problem.work
    sums = sums_of_layer(facts, wholes, problem.links, work)
    if sums is None or len({tuple(policy.name for policy in whole.policies) for whole in wholes}) > 1:
        return None
    # Sums need one number type, so that all unpack their weights or none does.
    room = [_room_to_unpack(facts, whole, work, share) for whole, share in zip(wholes, shares, strict=True)]
    unpacked = np.logical_and.reduce(room)
    members = tuple(_slice(facts, whole, work, share, unpacked) for whole, share in zip(wholes, shares, strict=True))
    layers = model_effort(facts, work).layers
    prefill = _most([member.prefill for member in members]) + sums[0] * layers
    decode = _most([member.decode for member in members]) + sums[1] * layers
    # What its members lack together, the group lacks.
    memory = min(member.node.memory for member in members)
    lacking = [member.need - member.node.memory for member in members]
    missing = sum(np.maximum(0.0, one) for one in lacking)
    need = np.where(missing > 0, missing, _most(lacking)) + memory
    first = members[0]
    values = {name: getattr(first, name) for name in ("policies", "weights", "cache", "activations", "costs")}
    return GroupTable(
        **values,
        node=replace(first.node, memory=memory),
        unpacked=unpacked,
        need=need,
        prefill=prefill,
        decode=decode,
        request=prefill + work.output * decode,
        members=members,
        shares=tuple(shares),
        sums=sums[1] * layers,
    )


def _most(matrices: Sequence[Matrix]) -> Matrix:
    return reduce(np.maximum, matrices)


def _held(facts: ModelFacts, whole: StageTable, share: int, policy: int) -> tuple[Matrix, Matrix]:
    """Bytes of weights and cache for a share of every run; embedding and head are held in full."""
    part, costs = share / facts.groups, whole.costs[policy]
    body = sums_over_runs([layer.weights.bytes_under(whole.policies[policy]) for layer in facts.layers])
    return costs.weights - body * (1 - part), costs.cache * cache_part(facts, part)


def _room_to_unpack(facts: ModelFacts, whole: StageTable, work: Workload, share: int) -> NDArray[np.bool_]:
    weights, cache = _held(facts, whole, share, policy=0)
    fits: NDArray[np.bool_] = weights + cache + whole.activations + work.reserve <= whole.node.memory
    return fits


def _slice(facts: ModelFacts, whole: StageTable, work: Workload, share: int, unpacked: NDArray[np.bool_]) -> StageTable:
    """What a node's table for whole layers becomes with a share of each."""
    part, effort = share / facts.groups, model_effort(facts, work)
    choices = []
    for number, (policy, costs) in enumerate(zip(whole.policies, whole.costs, strict=True)):
        speed = speed_of(facts, whole.node, policy)
        launches = speed.layer_seconds * effort.layers
        times = stage_times(whole.node, effort, costs, speed)
        slices = [(time - launches) * part + launches for time in times]
        choices.append((*_held(facts, whole, share, number), *slices))
    weights, cache, prefill, decode = (np.where(unpacked, one, other) for one, other in zip(*choices, strict=True))
    return replace(
        whole,
        unpacked=unpacked,
        weights=weights,
        cache=cache,
        need=weights + cache + whole.activations + work.reserve,
        prefill=prefill,
        decode=decode,
        request=prefill + work.output * decode,
    )
