"""What is asked of every trace, whoever recorded it and wherever its ranks are."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from chorus.telemetry.phases import PHASES

Event = dict[str, Any]
DOES_SOMETHING = {"compute", "transport", "sampling", "schedule"}
NANOSECONDS = 0.01
"""Microseconds that rounding may take."""


class Written:
    """A trace as it lies on disk."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.events: list[Event] = document["traceEvents"]
        self.told: dict[str, Any] = document["otherData"]
        self.names = {e["pid"] - 1: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        self.spans: defaultdict[int, list[Event]] = defaultdict(list)
        self.reasons: defaultdict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                kind = self.reasons if event["cat"] == "reason" else self.spans
                kind[event["pid"] - 1].append(event)

    def with_rows(self, mapping: Mapping[int, int]) -> Written:
        """The same trace with the row of each rank under another one's name: what stands in them stays."""
        return self._changed(lambda event: event | {"pid": mapping[event["pid"] - 1] + 1})

    def naming(self, mapping: Mapping[tuple[int, int], int]) -> Written:
        """The same trace with other ranks named in its waits, by who waits and for whom."""

        def renamed(event: Event) -> Event:
            args = event["args"]
            wrong = mapping[event["pid"] - 1, args["for_rank"]] if "for_rank" in args else None
            return event if wrong is None else event | {"args": args | {"for_rank": wrong}}

        return self._changed(renamed)

    def _changed(self, change: Callable[[Event], Event]) -> Written:
        events = [change(event) if "pid" in event and "args" in event else event for event in self.events]
        return Written({"traceEvents": events, "otherData": self.told})

    def error(self, *ranks: int) -> float:
        """Microseconds by which moments of these ranks may be wrong against each other."""
        return 1e6 * sum(self.told["clock_error_seconds"][str(rank)] for rank in ranks) + NANOSECONDS

    def waits(self) -> Iterator[tuple[int, Event]]:
        return ((rank, span) for rank, spans in self.spans.items() for span in spans if span["cat"] == "wait")

    def arrows(self) -> list[tuple[Event, Event]]:
        """Where tensors were sent, and where they were taken."""
        sent = {event["id"]: event for event in self.events if event["ph"] == "s"}
        return [(sent[event["id"]], event) for event in self.events if event["ph"] == "f"]


def end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def is_whole(trace: Written) -> None:
    """Of each rank's time at least 95 % has a phase, and no moment has two."""
    for rank, spans in trace.spans.items():
        spans.sort(key=lambda span: span["ts"])
        assert {span["cat"] for span in spans} <= set(PHASES)
        wall = end(spans[-1]) - spans[0]["ts"]
        assert sum(span["dur"] for span in spans) >= 0.95 * wall, f"rank {rank}"
        for before, after in pairwise(spans):
            assert end(before) <= after["ts"] + NANOSECONDS, (rank, before, after)


class Piece(NamedTuple):
    """Of a wait: who worked at the other end of the chain of waits, or else whether what it is for was under way."""

    begin: float
    end: float
    worker: int | None
    under_way: bool = False


class Waits:
    """Why each rank of a trace waits, read from the spans of all alone: nothing that the trace says of reasons."""

    def __init__(self, trace: Written) -> None:
        self._spans = {rank: sorted(spans, key=lambda span: span["ts"]) for rank, spans in trace.spans.items()}
        self._begins = {rank: [span["ts"] for span in spans] for rank, spans in self._spans.items()}
        self._sends = {
            (rank, span["args"]["to_rank"], span["args"].get("step")): float(span["ts"])
            for rank, spans in self._spans.items()
            for span in spans
            if "to_rank" in span["args"]
        }

    def taken_next(self, rank: int, wait: Event) -> Event | None:
        """What tensors a wait ended with; None where it was not for any."""
        spans, place = self._spans[rank], bisect_right(self._begins[rank], wait["ts"])
        for span in spans[place:]:
            if "from_rank" in span["args"]:
                return span
            if span["cat"] != "compute" or span["args"].get("step") != wait["args"].get("step"):
                break
        return None

    def sent(self, rank: int, wait: Event) -> float | None:
        """When the rank that it names has sent what it ended with; None: it has not."""
        taken = self.taken_next(rank, wait)
        return self._sends.get((wait["args"]["for_rank"], rank, taken["args"].get("step"))) if taken else None

    def pieces(self, rank: int, wait: Event) -> Iterator[Piece]:
        return self._chase(rank, wait, wait["ts"], end(wait), (), math.inf)

    def _chase(
        self, rank: int, wait: Event, begin: float, until: float, seen: tuple[int, ...], sent: float
    ) -> Iterator[Piece]:
        """`sent`: since when something was under way to a rank that waits."""
        found, named, seen = self.sent(rank, wait), wait["args"]["for_rank"], (*seen, rank)
        sent = sent if found is None else min(sent, found)
        if named in seen:
            middle = min(max(begin, sent), until)
            yield from (each for each in (Piece(begin, middle, None), Piece(middle, until, None, True)) if _lasts(each))
            return
        spans = self._spans[named]
        for span in spans[max(0, bisect_right(self._begins[named], begin) - 1) :]:
            if span["ts"] >= until:
                return
            piece = Piece(max(begin, span["ts"]), min(until, end(span)), named)
            if not _lasts(piece):
                continue
            if span["cat"] == "wait":
                yield from self._chase(named, span, piece.begin, piece.end, seen, sent)
            else:
                yield piece if span["cat"] in DOES_SOMETHING else piece._replace(worker=None)


def _lasts(piece: Piece) -> bool:
    return piece.begin < piece.end


def named_sent_it(trace: Written) -> float:
    """The share of waits for tensors in which the rank that they name had sent these before they ended. What that rank
    was at when the trace began may have been sent before.
    """
    waits, first = Waits(trace), {rank: spans[0]["args"].get("step", 0) for rank, spans in trace.spans.items()}
    of_tensors = [
        (rank, wait)
        for rank, wait in trace.waits()
        if (taken := waits.taken_next(rank, wait)) and taken["args"]["step"] > first[wait["args"]["for_rank"]]
    ]
    sent = [(rank, wait, waits.sent(rank, wait)) for rank, wait in of_tensors]
    in_time = [at for rank, w, at in sent if at is not None and at <= end(w) + trace.error(rank, w["args"]["for_rank"])]
    return len(in_time) / len(of_tensors)


def explained(trace: Written) -> float:
    """The share of all waiting in which the rank that a wait names worked, or the one that this one waited for and so
    on, or what that chain had sent was under way. The rest is the leader's word on its way to those that follow.
    """
    waits = Waits(trace)
    pieces = [piece for rank, wait in trace.waits() for piece in waits.pieces(rank, wait)]
    known = sum(piece.end - piece.begin for piece in pieces if piece.worker is not None or piece.under_way)
    return known / sum(wait["dur"] for _, wait in trace.waits())


def waits_are_for_whom_they_name(trace: Written, floor: float) -> float:
    """Every wait names another rank, which has sent what the wait ended with; what stands below each wait is what the
    others did; and at least that share of all waiting is explained, which is answered.
    """
    waits, below = Waits(trace), {rank: sorted(of, key=lambda each: each["ts"]) for rank, of in trace.reasons.items()}
    for rank, wait in trace.waits():
        named = wait["args"]["for_rank"]
        assert named in trace.spans, wait
        assert named != rank, wait
        pieces = list(waits.pieces(rank, wait))
        reasons = [each for each in below[rank] if each["ts"] < end(wait) and end(each) > wait["ts"]]
        assert abs(sum(each["dur"] for each in reasons) - wait["dur"]) <= NANOSECONDS * (1 + len(reasons)), wait
        for reason in reasons:
            blamed = reason["args"].get("rank")
            same = sum(
                max(0.0, min(piece.end, end(reason)) - max(piece.begin, reason["ts"]))
                for piece in pieces
                if piece.worker == blamed
            )
            assert same >= reason["dur"] - NANOSECONDS * (1 + len(pieces)), (wait, reason)
    assert named_sent_it(trace) == 1
    share = explained(trace)
    assert share >= floor, share
    return share


def nothing_is_taken_before_it_is_sent(trace: Written) -> int:
    """Beyond what the clocks may be wrong by; how many tensors that was seen of."""
    arrows = trace.arrows()
    for sent, taken in arrows:
        error = trace.error(sent["pid"] - 1, taken["pid"] - 1)
        assert sent["ts"] <= taken["ts"] + error, (sent, taken)
    return len(arrows)
