"""How many threads serve best, found out by trying: each number in turn, again and again, and the usual time counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

_GAIN = 0.95
"""The part of the usual number's time that another may take at most: the noise of a short trial decides nothing."""


def candidates(most: int) -> list[int]:
    """Worth a try where there may be so many: all, all but one, half of them, one."""
    return sorted({most, max(1, most - 1), (most + 1) // 2, 1}, reverse=True)


def medians(turn: Callable[[int], object], numbers: Iterable[int], rounds: int, seconds: float) -> dict[int, float]:
    """What a turn with each of the numbers usually takes. No further round begins after so many seconds: threads that
    are in each other's way can take a second for a few milliseconds' work.
    """
    spent: dict[int, list[float]] = {number: [] for number in numbers}
    until = time.perf_counter() + seconds
    for _ in range(rounds):
        for number, times in spent.items():
            started = time.perf_counter()
            turn(number)
            times.append(time.perf_counter() - started)
        if time.perf_counter() > until:
            break
    return {number: statistics.median(times) for number, times in spent.items()}


def choose(seconds: dict[int, float], usual: int) -> int:
    """The fastest number, if it is clearly faster than the usual one."""
    best = min(seconds, key=lambda number: seconds[number])
    return best if seconds[best] <= _GAIN * seconds[usual] else usual


def told(seconds: dict[int, float]) -> str:
    return ", ".join(f"{number} in {1000 * spent:.1f} ms" for number, spent in seconds.items())
