"""Which nodes make the best chain, and in which order. Pure.

Up to EXACT_NODES all ordered sets are searched, cut short where a beginning already costs more than the best chain
found. Above that, a heuristic: the nodes are ranked three ways (speed, memory, both), the first k of each ranking are
tried for every k, slowest first and fastest last, and the best chain is then improved by leaving out, adding and
exchanging nodes as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from chorus.planning.costs import Prediction, StageTable, hop, hops_of, predict_pipeline
from chorus.planning.cuts import Bounds, Vector, extend, least_total, quickest, shortage, start
from chorus.planning.problem import Problem

EXACT_NODES = 6
IMPROVEMENT_ROUNDS = 3
IDLE_KINDS = 6
_GAIN = 1 - 1e-9
"""A chain must be better by more than rounding."""


@dataclass(frozen=True)
class Chain:
    """Stages from first to last; the last one leads."""

    tables: tuple[StageTable, ...]
    bounds: Bounds
    prediction: Prediction

    @property
    def seconds(self) -> float:
        return self.prediction.request_seconds


def chain_of(problem: Problem, stages: Sequence[StageTable], bounds: Bounds) -> Chain:
    """These stages, cut there, with what a request takes."""
    return Chain(tuple(stages), bounds, predict_pipeline(problem.facts, stages, problem.links, problem.work, bounds))


@dataclass
class Search:
    """The best chain so far, and the orders of nodes that were tried."""

    problem: Problem
    fewest: int = 1
    """Stages that a chain must have."""
    best: Chain | None = None
    _tried: set[tuple[str, ...]] = field(default_factory=set)

    def consider(self, order: Sequence[StageTable]) -> None:
        """Keep the best split of one order of nodes when it is the best of all."""
        key = tuple(table.node.name for table in order)
        if key in self._tried or len(order) < self.fewest:
            return
        self._tried.add(key)
        bound = self.best.seconds * _GAIN if self.best else float("inf")
        chain = best_split(self.problem, order, bound)
        if chain and chain.seconds < bound:
            self.best = chain

    @property
    def leader(self) -> str | None:
        return self.problem.request.leader

    def may_lead(self, table: StageTable) -> bool:
        return self.leader in (None, table.node.name)


def best_split(problem: Problem, order: Sequence[StageTable], bound: float = float("inf")) -> Chain | None:
    """The best split of these stages; None where there is none below `bound` seconds."""
    if len(order) > problem.layers:
        return None
    work = problem.work
    hops, back = hops_of(problem.facts, order, problem.links, work)
    between = sum(hop.prefill + work.output * hop.decode for hop in hops) + (1 + work.output) * back
    slowest = max((hop.prefill for hop in hops), default=0.0)
    bounds = quickest(order, work.chunks, slowest, bound - between)
    return chain_of(problem, order, bounds) if bounds else None


def find_chain(problem: Problem, tables: Sequence[StageTable], fewest: int = 1) -> Chain | None:
    """The quickest chain of any of these nodes, so many at least; None where the model fits nowhere."""
    search = Search(problem, fewest)
    ordered = sorted(tables, key=lambda table: table.node.name)
    if len(tables) <= EXACT_NODES:
        _search_all(search, ordered)
    else:
        _search_some(search, ordered)
    return search.best


def _search_all(search: Search, tables: Sequence[StageTable]) -> None:
    totals = {table.node.name: table.request_runs for table in tables}
    interchangeable = not search.problem.links.pairs

    def visit(order: list[StageTable], sums: Vector, between: float) -> None:
        tried = set()
        for table in tables:
            spec = (table.node.backend, table.node.memory, table.node.flops, table.node.bandwidth)
            twin = interchangeable and table.node.name != search.leader and (*spec, table.policies) in tried
            if table in order or twin or len(order) == search.problem.layers:
                continue
            tried.add((*spec, table.policies))
            longer = [*order, table]
            spent = between + (_hop_seconds(search, order[-1], table) if order else 0.0)
            reached = extend(sums, totals[table.node.name])
            if not np.isfinite(reached).any() or _too_slow(search, float(reached.min()) + spent):
                continue
            if search.may_lead(table) and not _too_slow(search, float(reached[-1]) + spent):
                search.consider(longer)
            if search.leader != table.node.name:
                visit(longer, reached, spent)

    visit([], start(search.problem.layers), 0.0)


def _too_slow(search: Search, seconds: float) -> bool:
    return search.best is not None and seconds >= search.best.seconds * _GAIN


def _hop_seconds(search: Search, sender: StageTable, receiver: StageTable) -> float:
    problem = search.problem
    cost = hop(problem.facts, problem.links.between(sender.node.name, receiver.node.name), sender, problem.work)
    return cost.prefill + problem.work.output * cost.decode


def _search_some(search: Search, tables: Sequence[StageTable]) -> None:
    for order in _promising(search, tables):
        search.consider(order)
    for _ in range(IMPROVEMENT_ROUNDS):
        before = search.best
        if before is None:
            return
        for order in _neighbours(before.tables, tables):
            if search.may_lead(order[-1]):
                search.consider(order)
        if search.best is before:
            return


def _promising(search: Search, tables: Sequence[StageTable]) -> Iterator[list[StageTable]]:
    leaders = [table for table in tables if table.node.name == search.leader]
    for table in leaders or tables:
        yield [table]

    def speed(table: StageTable) -> float:
        return float(table.request[0, -1])

    rankings = (
        sorted(tables, key=lambda table: (speed(table), table.node.name)),
        sorted(tables, key=lambda table: (-table.node.memory, speed(table), table.node.name)),
        sorted(tables, key=lambda table: (speed(table) / table.node.memory, table.node.name)),
    )
    most = min(len(tables), search.problem.layers)
    yield from _by_memory(tables, most, leaders)
    for ranking in rankings:
        for count in _counts(most):
            chosen = ranking[:count]
            if leaders and leaders[0] not in chosen:
                chosen = [*chosen[:-1], leaders[0]]
            rest = sorted(
                (table for table in chosen if table not in leaders), key=lambda table: (-speed(table), table.node.name)
            )
            yield [*rest, *leaders]


def _counts(most: int) -> list[int]:
    """Numbers from 1 to `most`, thinning out: of many nodes, one more or less hardly matters."""
    return sorted({min(most, round(1.25**step)) for step in range(60)} | set(range(1, min(most, 8) + 1)))


def _by_memory(tables: Sequence[StageTable], most: int, leaders: Sequence[StageTable]) -> Iterator[list[StageTable]]:
    """Orders with the largest first or last: where anything fits, one of these nearly always does."""
    largest = sorted(tables, key=lambda table: (-table.node.memory, table.node.name))
    for count in _counts(most):
        chosen = largest[:count]
        if leaders and leaders[0] not in chosen:
            chosen = [*chosen[:-1], leaders[0]]
        rest = [table for table in chosen if table not in leaders]
        yield [*rest, *leaders]
        yield [*rest[::-1], *leaders]


def fewest_missing(tables: Sequence[StageTable], leader: str | None) -> float:
    """Bytes that are lacking in the best case; 0 where the model fits some chain of these nodes."""
    layers = len(tables[0].need) - 1
    lacking = {table.node.name: shortage(table) for table in tables}
    leaders = [table for table in tables if table.node.name == leader]
    if len(tables) > EXACT_NODES:
        orders = _by_memory(tables, min(len(tables), layers), leaders)
        return min(least_total([lacking[table.node.name] for table in order])[0] for order in orders)
    best = float("inf")

    def visit(order: list[StageTable], sums: Vector) -> None:
        nonlocal best
        for table in tables:
            if table in order or len(order) == layers or not best:
                continue
            reached = extend(sums, lacking[table.node.name])
            if float(reached.min()) >= best:
                continue
            if leader in (None, table.node.name):
                best = min(best, float(reached[-1]))
            if table not in leaders:
                visit([*order, table], reached)

    visit([], start(layers))
    return best


def _neighbours(order: Sequence[StageTable], tables: Sequence[StageTable]) -> Iterator[list[StageTable]]:
    """Orders with one node fewer, one more in front, or one exchanged for its neighbour or for an idle one."""
    places = range(len(order))
    idle = _one_of_each_kind([table for table in tables if table not in order])
    for place in places:
        if len(order) > 1:
            yield [*order[:place], *order[place + 1 :]]
        if place + 1 < len(order):
            yield [*order[:place], order[place + 1], order[place], *order[place + 2 :]]
        for other in idle:
            yield [*order[:place], other, *order[place + 1 :]]
    for other in idle:
        yield [other, *order]


def _one_of_each_kind(tables: Sequence[StageTable]) -> list[StageTable]:
    kinds = {(table.node.backend, table.node.memory, table.node.flops, table.node.bandwidth): table for table in tables}
    return list(kinds.values())[:IDLE_KINDS]
