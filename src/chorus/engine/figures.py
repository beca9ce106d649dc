"""What a leader tells of its group once a second: the metrics that only an engine can count."""

from __future__ import annotations

from collections.abc import Iterator

from chorus.messages.figures import Figure
from chorus.messages.proto import engine_pb2 as pb
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.declared import Metric
from chorus.telemetry.metrics.histogram import Histogram
from chorus.telemetry.phases import PHASES
from chorus.transport import catalog

_BY_THEMSELVES = frozenset({declared.RANK_AGE.name, declared.RANK_PHASE.name})
"""They change with the time alone."""


def at_rest(told: pb.Figures, before: pb.Figures) -> bool:
    """Whether nothing has happened between the two."""
    one, other = ([each for each in figures.figures if each.name not in _BY_THEMSELVES] for figures in (told, before))
    return one == other


def figures(engine: pb.Description, replaces: bool, step_tokens: Histogram | None) -> Iterator[Figure]:
    """`replaces`: an engine was lost before this one. `step_tokens` is None until it serves."""

    def figure(metric: Metric, value: float, *labels: str) -> Figure:
        return Figure(metric.name, labels, value)

    yield figure(declared.LOADS, engine.load_count)
    yield figure(declared.RECOVERIES, engine.recoveries.count, "rank")
    yield figure(declared.RECOVERIES, replaces, "leader")
    if step_tokens is None:
        return
    cache = engine.cache
    yield step_tokens.figure()
    yield figure(declared.RUNNING, engine.running)
    yield figure(declared.WAITING, engine.queued)
    yield figure(declared.CACHE_USAGE, cache.live_bytes / cache.budget_bytes if cache.budget_bytes else 0.0)
    yield figure(declared.STORED_BYTES, cache.bytes)
    yield figure(declared.PREFIX_QUERIES, cache.prompt_tokens)
    yield figure(declared.PREFIX_HITS, cache.cached_tokens)
    yield figure(declared.PREEMPTIONS, cache.preempted)
    over_grpc = not catalog.get(engine.transport).collective
    for rank in engine.ranks:
        number = str(rank.rank)
        yield figure(declared.RANK_MEMORY, rank.memory_bytes, number)
        yield figure(declared.RANK_STEP, rank.step, number)
        yield figure(declared.RANK_AGE, rank.heard_seconds, number)
        for phase, seconds in zip(PHASES, rank.phase_seconds, strict=False):
            yield figure(declared.RANK_PHASE, seconds, number, phase)
        if rank.rank and over_grpc:
            yield figure(declared.RANK_TENSORS, rank.tensor_bytes, number)
            yield figure(declared.RANK_SENT, rank.sent_bytes, number)
