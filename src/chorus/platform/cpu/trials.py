"""How many threads serve best, found out by trying: each number in turn, again and again, and the usual time counts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

_GAIN = 0.95
"""The part of the usual number's time that another may take at most: the noise of a short trial decides nothing."""
_HOPELESS = 3.0
"""Times what the fastest took."""


def candidates(most: int) -> list[int]:
    """Worth a try where there may be so many: all, all but one, half of them, one."""
    return sorted({most, max(1, most - 1), (most + 1) // 2, 1}, reverse=True)


def medians(
    parts: Sequence[Callable[[int], object]], numbers: Iterable[int], rounds: int, seconds: float
) -> dict[int, float]:
    """What all parts together usually take with each of the numbers, the fewest first.

    Threads that are in each other's way can take a second for a few milliseconds' work: no further round begins after
    so many seconds, and a number that is hopeless at once, in the first part, is not tried any more, nor among the
    answers.
    """
    spent: dict[int, list[float]] = {number: [] for number in sorted(numbers)}
    until = time.perf_counter() + seconds
    first = math.inf
    for _ in range(rounds):
        for number in list(spent):
            took = [_seconds(parts[0], number)]
            if took[0] > _HOPELESS * first and not spent[number]:
                del spent[number]
                continue
            first = min(first, took[0])
            took += [_seconds(part, number) for part in parts[1:]]
            spent[number].append(sum(took))
        if time.perf_counter() > until:
            break
    return {number: statistics.median(times) for number, times in spent.items()}


def _seconds(part: Callable[[int], object], number: int) -> float:
    started = time.perf_counter()
    part(number)
    return time.perf_counter() - started


def choose(seconds: dict[int, float], usual: int) -> int:
    """The fastest number, if it is clearly faster than the usual one. One that was hopeless is not among them."""
    best = min(seconds, key=lambda number: seconds[number])
    return best if seconds[best] <= _GAIN * seconds.get(usual, math.inf) else usual


def told(seconds: dict[int, float], numbers: Iterable[int]) -> str:
    """For a log: what each of the numbers took."""
    return ", ".join(
        f"{number} in {1000 * seconds[number]:.1f} ms" if number in seconds else f"{number}: far slower"
        for number in numbers
    )
