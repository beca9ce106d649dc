"""What the engines of one model have told, one after the other: a counter goes on where the last engine left it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from chorus.messages.figures import Figure
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.declared import METRICS, Kind

MOST_FIGURES = 10_000
"""Of one engine: a thousand ranks tell ten each."""

Key = tuple[str, tuple[str, ...]]


class EngineFigures:
    """Asked by nobody's leave: what was told last is all that is needed, whether its engine still lives or not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.up = False
        """Whether an engine tells what it does."""
        self._clock = clock
        self._heard_at = 0.0
        self._engine = 0.0
        """Which one told last, by when it started."""
        self._now: dict[Key, Figure] = {}
        self._before: dict[Key, Figure] = {}
        """What counters came to in engines that are gone, and in ranks that were replaced."""

    def take(self, started_at: float, figures: Iterable[Figure]) -> None:
        told = {_key(each): each for each in islice(figures, MOST_FIGURES) if _declared(each)}
        another = started_at != self._engine
        counted = {key: each for key, each in self._now.items() if not _is_gauge(each)}
        for key, last in counted.items():
            if another or (key in told and _smaller(told[key], last)):
                self._before[key] = added(self._before.get(key), last)
        # A rank that is being replaced is not told of for a while.
        self._now = told if another else {**counted, **told}
        self._engine, self._heard_at, self.up = started_at, self._clock(), True

    def lose(self, started_at: float) -> None:
        """The engine that started then tells no more how much there is of anything; what was counted stays."""
        if started_at != self._engine:
            return
        self.up = False
        self._now = {key: each for key, each in self._now.items() if not _is_gauge(each)}

    def figures(self) -> Iterator[Figure]:
        yield Figure(declared.ENGINE_UP.name, value=self.up)
        silent = self._clock() - self._heard_at
        for key, each in self._now.items():
            if METRICS[each.name].ages:
                yield each._replace(value=each.value + silent)
            else:
                yield added(self._before.get(key), each)
        for key, each in self._before.items():
            if key not in self._now:
                yield each


def added(one: Figure | None, other: Figure) -> Figure:
    """Both of the same metric, with the same labels."""
    if one is None:
        return other
    buckets = tuple(map(sum, zip(one.buckets, other.buckets, strict=True)))
    return Figure(one.name, one.labels, one.value + other.value, buckets, one.sum + other.sum)


def _key(figure: Figure) -> Key:
    return figure.name, figure.labels


def _is_gauge(figure: Figure) -> bool:
    return METRICS[figure.name].kind is Kind.GAUGE


def _smaller(one: Figure, other: Figure) -> bool:
    return one.value < other.value or sum(one.buckets) < sum(other.buckets)


def _declared(figure: Figure) -> bool:
    metric = METRICS.get(figure.name)
    if metric is None or len(figure.labels) != len(metric.own_labels):
        return False
    bounded = len(metric.buckets) + 1 if metric.kind is Kind.HISTOGRAM else 0
    return len(figure.buckets) == bounded and math.isfinite(figure.value) and math.isfinite(figure.sum)
