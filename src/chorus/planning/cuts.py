"""Where to cut a chain of stages, given the order of the nodes. Exact, by dynamic programming. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorus.planning.costs import Matrix, StageTable, runs_only
from chorus.planning.plan import PlanError

Bounds = tuple[int, ...]
"""Stage s holds layers bounds[s] to bounds[s + 1] - 1."""
Vector = NDArray[np.float64]
Combine = Callable[[Matrix, Matrix], Matrix]


def start(layers: int) -> Vector:
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0
    return best


def extend(best: Vector, costs: Matrix) -> Vector:
    """Add one more stage: for every end, the least total of a chain up to there."""
    return (best[:, None] + costs).min(axis=0)


def least_total(costs: Sequence[Matrix]) -> tuple[float, Bounds | None]:
    """The split whose stage costs add up to the least."""
    return _solve(costs, np.add)


def least_maximum(costs: Sequence[Matrix]) -> tuple[float, Bounds | None]:
    """The split whose costliest stage costs the least."""
    return _solve(costs, np.maximum)


def _solve(costs: Sequence[Matrix], combine: Combine) -> tuple[float, Bounds | None]:
    layers = len(costs[0]) - 1
    reached = [start(layers)]
    for matrix in costs:
        reached.append(combine(reached[-1][:, None], matrix).min(axis=0))
    if not np.isfinite(reached[-1][layers]):
        return float("inf"), None
    # Only the way that leads to the end is looked up again, backwards.
    bounds = [layers]
    for best, matrix in zip(reversed(reached[:-1]), reversed(costs), strict=True):
        bounds.append(int(combine(best, matrix[:, bounds[-1]]).argmin()))
    return float(reached[-1][layers]), tuple(reversed(bounds))


def balanced(tables: Sequence[StageTable]) -> Bounds | None:
    """The split whose slowest stage is as fast as can be; among such splits, the one that takes least in all."""
    decode = [runs_only(table.decode, table.fits) for table in tables]
    slowest, found = least_maximum(decode)
    if found is None:
        return None
    return least_total([np.where(costs <= slowest, costs, np.inf) for costs in decode])[1]


def quickest(
    tables: Sequence[StageTable], chunks: int, floor: float = 0.0, bound: float = float("inf")
) -> Bounds | None:
    """The split that takes least: all stages' times for a request, the slowest again for each further prefill chunk.

    `floor` is a time that the slowest cannot go below (a link's); what costs `bound` or more is of no interest. The
    cheapest split is found for ever tighter limits on the slowest stage. A tighter limit only makes the sum larger,
    so the next limit worth trying follows from the best found so far.
    """
    totals = [table.request_band for table in tables]
    again = chunks - 1
    cost, bounds = _cut_bands(totals, np.add)
    if bounds is None or again == 0 or cost + again * floor >= bound:
        return bounds if cost < bound and again == 0 else None
    prefill = [table.prefill_band for table in tables]
    lowest, evened = _cut_bands(prefill, np.maximum)
    assert evened is not None
    best_cost, best = bound, None
    for candidate in (evened, bounds):
        spent = sum(_along(totals, candidate)) + again * max(floor, *_along(prefill, candidate))
        if spent < best_cost:
            best_cost, best = spent, candidate
    limit = max(_along(prefill, bounds))
    while cost + again * max(floor, lowest) < best_cost:
        limit = min(limit, (best_cost - cost) / again)
        cost, bounds = _cut_bands([_below(limit, *pair) for pair in zip(prefill, totals, strict=True)], np.add)
        if bounds is None:
            break
        limit = max(_along(prefill, bounds))
        if cost + again * max(floor, limit) < best_cost:
            best_cost, best = cost + again * max(floor, limit), bounds
    return best


def _cut_bands(bands: Sequence[Matrix], combine: Combine) -> tuple[float, Bounds | None]:
    """What `_solve` does, over bands: row d - 1 holds the runs of d layers, by their ends."""
    layers = bands[0].shape[1] - 1
    reached = [start(layers)]
    for band in bands:
        if not len(band):
            return float("inf"), None
        reached.append(combine(_beginnings(reached[-1], len(band)), band).min(axis=0))
    if not np.isfinite(reached[-1][layers]):
        return float("inf"), None
    bounds = [layers]
    for best, band in zip(reversed(reached[:-1]), reversed(bands), strict=True):
        longest = min(len(band), bounds[-1])
        before = best[bounds[-1] - longest : bounds[-1]][::-1]
        bounds.append(bounds[-1] - 1 - int(combine(before, band[:longest, bounds[-1]]).argmin()))
    return float(reached[-1][layers]), tuple(reversed(bounds))


def _beginnings(best: Vector, longest: int) -> Matrix:
    """A view that has at [d - 1, j] the best up to where a run of d layers that ends before j begins."""
    padded = np.full(longest + len(best), np.inf)
    padded[longest:] = best
    item = padded.itemsize
    return np.ndarray((longest, len(best)), buffer=padded, offset=(longest - 1) * item, strides=(-item, item))


def _below(limit: float, prefill: Matrix, totals: Matrix) -> Matrix:
    """The totals of runs whose prefill stays below the limit; a longer run never takes less."""
    longest = int(np.count_nonzero(prefill.min(axis=1) < limit))
    return np.where(prefill[:longest] < limit, totals[:longest], np.inf)


def _along(bands: Sequence[Matrix], bounds: Bounds) -> list[float]:
    return [float(band[last - first - 1, last]) for band, (first, last) in zip(bands, pairwise(bounds), strict=True)]


def evenest(prefill: Sequence[Matrix], decode: Sequence[Matrix], chunks: int, output: int) -> Bounds | None:
    """The split that takes least: the slowest prefill for each chunk, and the slowest decode step for each token."""
    slowest, bounds = least_maximum(decode)
    lowest = least_maximum(prefill)[0]
    best_cost, best = float("inf"), bounds
    while bounds is not None and output * slowest + chunks * lowest < best_cost:
        chunk = dearest(prefill, bounds)
        if output * slowest + chunks * chunk < best_cost:
            best_cost, best = output * slowest + chunks * chunk, bounds
        if chunk <= lowest:
            break
        decode = [np.where(times < chunk, steps, np.inf) for times, steps in zip(prefill, decode, strict=True)]
        slowest, bounds = least_maximum(decode)
    return best


def dearest(costs: Sequence[Matrix], bounds: Bounds) -> float:
    return max(float(matrix[run]) for matrix, run in zip(costs, pairwise(bounds), strict=True))


def nearest_to_shares(tables: Sequence[StageTable], shares: Sequence[float]) -> Bounds | None:
    """The split that fits and is closest to the wanted shares of the layers (least squares)."""
    layers = len(tables[0].need) - 1
    counts = (np.arange(layers + 1)[None, :] - np.arange(layers + 1)[:, None]).astype(np.float64)
    costs = [runs_only((counts - share * layers) ** 2, table.fits) for table, share in zip(tables, shares, strict=True)]
    return least_total(costs)[1]


def least_missing(tables: Sequence[StageTable]) -> tuple[float, Bounds | None]:
    """The fewest bytes that the nodes of this chain lack together, and the split that lacks them."""
    return least_total([shortage(table) for table in tables])


def shortage(table: StageTable) -> Matrix:
    """Bytes that each run lacks on its node."""
    return runs_only(np.maximum(0.0, table.need - table.node.memory), np.ones_like(table.fits))


def apportion(shares: Sequence[float], total: int, names: Sequence[str]) -> tuple[int, ...]:
    """Whole parts of a total by largest remainder, each at least one. Ties go to the larger share, then by name."""
    if len(shares) > total:
        raise PlanError(f"{len(shares)} ranks cannot share what has {total} parts: use fewer ranks")
    whole = sum(shares)
    quotas = [share / whole * total for share in shares]
    parts = [int(quota + 1e-9) for quota in quotas]
    left = total - sum(parts)
    order = sorted(range(len(shares)), key=lambda i: (-round(quotas[i] - parts[i], 9), -shares[i], names[i]))
    for index in order[:left]:
        parts[index] += 1
    while 0 in parts:
        giver = max(range(len(parts)), key=lambda i: (parts[i], names[i]))
        parts[giver] -= 1
        parts[parts.index(0)] += 1
    return tuple(parts)
