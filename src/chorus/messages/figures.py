"""The link over which a front end hears what an engine counts: plain values, each under the name of its metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from chorus.messages.proto import engine_pb2 as pb


class Figure(NamedTuple):
    """One value of a metric."""

    name: str
    labels: tuple[str, ...] = ()
    """Their values, in the order in which the metric declares them behind the model's name."""
    value: float = 0.0
    """Of a counter or a gauge."""
    buckets: tuple[int, ...] = ()
    """Of a histogram: how many were counted in each, the last without a bound."""
    sum: float = 0.0
    """Of a histogram."""


def figures_to_wire(started_at: float, figures: Iterable[Figure]) -> pb.Figures:
    return pb.Figures(started_at=started_at, figures=[pb.Figure(**figure._asdict()) for figure in figures])


def figures_from_wire(message: pb.Figures) -> list[Figure]:
    return [
        Figure(each.name, tuple(each.labels), each.value, tuple(each.buckets), each.sum) for each in message.figures
    ]
