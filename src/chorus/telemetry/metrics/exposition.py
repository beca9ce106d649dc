"""Figures as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import exposition
from prometheus_client import metrics_core as core
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from chorus.messages.figures import Figure
from chorus.telemetry.metrics.declared import METRICS, MODEL, NODE, Kind, Metric
from chorus.telemetry.metrics.engines import added

Told = Mapping[str, Iterable[Figure]]
"""By the name of the model; what is of none stands under any."""


Nodes = Mapping[str, Mapping[int, str]]
"""What the nodes of a model's ranks are called, by the name of the model and the number of the rank."""
_NONE: Nodes = {}


def written(told: Told, accept: str, nodes: Nodes = _NONE) -> tuple[bytes, str]:
    """The text of a scrape and its type, in the newest format that whoever asks accepts."""
    encode, content_type = exposition.choose_encoder(accept)
    return encode(Gathered(told, nodes)), content_type


class Gathered(Collector):
    """All that is told of all models, in the order in which it is declared. What is told twice adds up: some wait in
    the front end, others in the engine."""

    def __init__(self, told: Told, nodes: Nodes) -> None:
        self._by_metric: dict[str, dict[tuple[str, ...], Figure]] = {name: {} for name in METRICS}
        for model, figures in told.items():
            of_ranks = {str(rank): name for rank, name in nodes.get(model, {}).items()}
            for figure in figures:
                labels, rows = _labels(figure, model, of_ranks), self._by_metric[figure.name]
                rows[labels] = added(rows.get(labels), figure)

    def collect(self) -> Iterator[core.Metric]:
        for name, rows in self._by_metric.items():
            if rows:
                yield _family(METRICS[name], rows)


def _labels(figure: Figure, model: str, nodes: Mapping[str, str]) -> tuple[str, ...]:
    """In the order in which the metric declares them."""
    metric = METRICS[figure.name]
    if NODE not in metric.labels:
        return (model, *figure.labels) if MODEL in metric.labels else figure.labels
    rank, *more = figure.labels
    return (model, rank, nodes.get(rank, ""), *more)


def _family(metric: Metric, rows: Mapping[tuple[str, ...], Figure]) -> core.Metric:
    match metric.kind:
        case Kind.COUNTER:
            counter = core.CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, figure in rows.items():
                counter.add_metric(labels, figure.value)
            return counter
        case Kind.GAUGE:
            gauge = core.GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, figure in rows.items():
                gauge.add_metric(labels, figure.value)
            return gauge
        case Kind.HISTOGRAM:
            histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
            for labels, figure in rows.items():
                counts = list(zip(bounds, accumulate(map(float, figure.buckets)), strict=True))
                histogram.add_metric(labels, counts, figure.sum)
            return histogram
