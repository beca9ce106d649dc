"""What ranks have recorded, as a trace that ui.perfetto.dev and chrome://tracing open: one row per rank, one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorus.telemetry.phases import NOBODY, PHASES, TRANSPORT, WAIT, Span, StepFacts
from chorus.telemetry.trace.clocks import Offset
from chorus.telemetry.trace.waits import Timelines

Event = dict[str, Any]

UNDER_WAY = "under way"
"""What is waited for where every rank waits: what was sent last."""


ON_TIME = Offset()
"""Of the leader, by whose clock all is told."""


@dataclass(frozen=True)
class RankRecording:
    """What one rank has recorded, by its own clock, and how that one goes."""

    rank: int
    node: str
    spans: Sequence[Span]
    offset: Offset = ON_TIME
    steps: Mapping[int, StepFacts] = field(default_factory=dict)
    """Of the leader alone."""
    full: bool = False
    pid: int = 0


class Trace:
    """All ranks on the leader's clock, over the time that every one of them has recorded."""

    def __init__(self, ranks: Sequence[RankRecording]) -> None:
        self.ranks = ranks
        aligned = {rank.rank: [_here(span, rank.offset) for span in rank.spans] for rank in ranks}
        some = [spans for spans in aligned.values() if spans]
        self.begin = max((spans[0].begin for spans in some), default=0.0)
        self.end = max(self.begin, min((spans[-1].end for spans in some), default=0.0))
        self.spans = {rank: list(_within(spans, self.begin, self.end)) for rank, spans in aligned.items()}
        self.steps = {number: facts for rank in ranks for number, facts in rank.steps.items()}
        self._timelines = Timelines(self.spans)

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def phase_seconds(self, rank: int) -> dict[str, float]:
        found = dict.fromkeys(PHASES, 0.0)
        for span in self.spans[rank]:
            found[PHASES[span.phase]] += span.end - span.begin
        return found

    def waited_for(self, rank: int) -> dict[int, float]:
        """Seconds of its waits by who did something meanwhile; NOBODY: what was sent was under way."""
        found: defaultdict[int, float] = defaultdict(float)
        for wait in self._waits(rank):
            for reason in self._timelines.reasons(rank, wait):
                found[reason.rank] += reason.end - reason.begin
        return dict(found)

    def steps_seen(self) -> list[int]:
        """The numbers of steps that any rank worked on meanwhile."""
        return sorted({span.step for spans in self.spans.values() for span in spans if span.step in self.steps})

    def events(self) -> Iterator[Event]:
        for rank in self.ranks:
            yield _named("process_name", rank.rank, name=f"rank {rank.rank} · {rank.node}")
            yield _named("process_sort_index", rank.rank, sort_index=rank.rank)
            yield _named("thread_name", rank.rank, name="main thread")
            for span in self.spans[rank.rank]:
                yield self._span(rank.rank, span)
                if span.phase == WAIT:
                    yield from self._reasons(rank.rank, span)
        yield from self._flows()

    def document(self, **told: object) -> dict[str, Any]:
        """The whole file; `told` is what else it says of itself."""
        return {
            "traceEvents": list(self.events()),
            "displayTimeUnit": "ms",
            "otherData": {
                **told,
                "seconds": self.seconds,
                "clock": "monotonic, of rank 0",
                "clock_offset_seconds": {str(rank.rank): rank.offset.seconds for rank in self.ranks},
                "clock_error_seconds": {str(rank.rank): rank.offset.error for rank in self.ranks},
            },
        }

    def _waits(self, rank: int) -> Iterator[Span]:
        return (span for span in self.spans[rank] if span.phase == WAIT)

    def _span(self, rank: int, span: Span) -> Event:
        facts, args = self.steps.get(span.step), _args(span)
        if facts and span.step:
            args |= {"kind": facts.kind, "rows": facts.rows, "tokens": facts.tokens}
        return self._slice(rank, _title(span), PHASES[span.phase], span.begin, span.end, args)

    def _reasons(self, rank: int, wait: Span) -> Iterator[Event]:
        """Below a wait, who did what meanwhile."""
        for reason in self._timelines.reasons(rank, wait):
            if reason.rank == NOBODY:
                yield self._slice(rank, UNDER_WAY, "reason", reason.begin, reason.end, {})
                continue
            title, args = f"rank {reason.rank}: {PHASES[reason.phase]}", {"rank": reason.rank}
            yield self._slice(rank, title, "reason", reason.begin, reason.end, args)

    def _flows(self) -> Iterator[Event]:
        """An arrow from where tensors were sent to where they were taken."""
        taken: defaultdict[tuple[int, int, int], list[Span]] = defaultdict(list)
        for rank, spans in self.spans.items():
            for span in spans:
                if span.phase == TRANSPORT and span.received_bytes:
                    taken[span.rank, rank, span.step].append(span)
        for rank, spans in self.spans.items():
            for span in spans:
                key = (rank, span.rank, span.step)
                if span.phase == TRANSPORT and span.sent_bytes and (ends := taken.get(key)):
                    name = {"name": "tensors", "cat": "tensors", "id": f"{span.step}.{rank}.{len(ends)}"}
                    yield {"ph": "s", **name, **_row(rank), "ts": self._middle(span)}
                    yield {"ph": "f", "bp": "e", **name, **_row(span.rank), "ts": self._middle(ends.pop(0))}

    def _slice(self, rank: int, name: str, category: str, begin: float, end: float, args: Event) -> Event:
        ts = self._micros(begin)
        dur = round(self._micros(end) - ts, 3)
        return {"ph": "X", "name": name, "cat": category, **_row(rank), "ts": ts, "dur": dur, "args": args}

    def _middle(self, span: Span) -> float:
        return self._micros((span.begin + span.end) / 2)

    def _micros(self, at: float) -> float:
        return round((at - self.begin) * 1e6, 3)


def _here(span: Span, offset: Offset) -> Span:
    return span._replace(begin=offset.here(span.begin), end=offset.here(span.end))


def _within(spans: Sequence[Span], begin: float, end: float) -> Iterator[Span]:
    for span in spans:
        if span.end > begin and span.begin < end:
            yield span._replace(begin=max(begin, span.begin), end=min(end, span.end))


def _title(span: Span) -> str:
    if span.phase == WAIT:
        return f"wait for rank {span.rank}"
    if span.phase == TRANSPORT and span.sent_bytes:
        return f"send to rank {span.rank}"
    if span.phase == TRANSPORT and span.received_bytes:
        return f"take from rank {span.rank}"
    return PHASES[span.phase]


def _args(span: Span) -> Event:
    args: Event = {"step": span.step} if span.step else {}
    if span.phase == WAIT:
        args["for_rank"] = span.rank
    if span.phase == TRANSPORT and span.sent_bytes:
        args |= {"to_rank": span.rank, "bytes": span.sent_bytes}
    elif span.phase == TRANSPORT and span.received_bytes:
        args |= {"from_rank": span.rank, "bytes": span.received_bytes}
    return args


def _row(rank: int) -> Event:
    """Perfetto takes process 0 for the system's own."""
    return {"pid": rank + 1, "tid": rank + 1}


def _named(what: str, rank: int, **args: object) -> Event:
    return {"ph": "M", "name": what, **_row(rank), "args": args}
