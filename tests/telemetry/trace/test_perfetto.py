from __future__ import annotations

import json

import pytest

from chorus.telemetry.phases import COMPUTE, IDLE, NOBODY, TRANSPORT, WAIT, Span, StepFacts
from chorus.telemetry.trace.clocks import Offset
from chorus.telemetry.trace.perfetto import RankRecording, Trace

AHEAD = 500.0
"""How much more the second rank's clock shows."""


@pytest.fixture
def trace() -> Trace:
    """Two ranks and one step: the second computes and sends, the first waits for it, takes and computes."""
    leader = [
        Span(9.0, 10.0, IDLE),
        Span(10.0, 10.3, WAIT, 1, 4),
        Span(10.3, 10.4, TRANSPORT, 1, 4, received_bytes=64),
        Span(10.4, 11.0, COMPUTE, step=4),
    ]
    follower = [
        Span(509.5, 510.2, COMPUTE, step=4),
        Span(510.2, 510.25, TRANSPORT, 0, 4, sent_bytes=80),
        Span(510.25, 512.0, WAIT, 0, 4),
    ]
    steps = {4: StepFacts("decode", 3, 3)}
    return Trace(
        [RankRecording(0, "a", leader, steps=steps), RankRecording(1, "b", follower, Offset(AHEAD, 0.001), pid=7)]
    )


def test_all_ranks_are_told_by_the_leaders_clock_over_the_time_they_share(trace: Trace) -> None:
    assert (trace.begin, trace.end) == (9.5, 11.0)
    assert [span.begin for span in trace.spans[1]] == pytest.approx([9.5, 10.2, 10.25])
    assert trace.spans[1][-1].end == 11.0


def test_seconds_by_phase_are_those_of_the_shared_time(trace: Trace) -> None:
    found = trace.phase_seconds(0)
    assert found["idle"] == pytest.approx(0.5)
    assert sum(found.values()) == pytest.approx(trace.seconds)
    assert trace.waited_for(0) == pytest.approx({1: 0.25, NOBODY: 0.05})
    assert trace.waited_for(1) == pytest.approx({0: 0.7, NOBODY: 0.05})


def test_a_document_opens_in_perfetto(trace: Trace) -> None:
    document = json.loads(json.dumps(trace.document(model="m")))
    events = document["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "M", "s", "f"}
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in slices)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0 · a", "rank 1 · b"]
    assert document["otherData"]["clock_error_seconds"] == {"0": 0.0, "1": 0.001}
    assert document["otherData"]["clock_offset_seconds"]["1"] == AHEAD


def test_a_span_says_its_step_its_batch_and_what_it_carries(trace: Trace) -> None:
    by_name = {event["name"]: event for event in trace.events() if event["ph"] == "X" and event["pid"] == 1}
    assert by_name["wait for rank 1"]["args"] == {"step": 4, "for_rank": 1, "kind": "decode", "rows": 3, "tokens": 3}
    taken = by_name["take from rank 1"]
    assert (taken["args"]["from_rank"], taken["args"]["bytes"], taken["cat"]) == (1, 64, "transport")
    assert by_name["rank 1: compute"]["cat"] == "reason"


def test_an_arrow_goes_from_where_tensors_were_sent_to_where_they_were_taken(trace: Trace) -> None:
    begin, end = (next(event for event in trace.events() if event["ph"] == kind) for kind in "sf")
    assert begin["id"] == end["id"]
    assert (begin["pid"], end["pid"]) == (2, 1)
    assert begin["ts"] < end["ts"]


def test_ranks_that_recorded_nothing_make_an_empty_trace() -> None:
    nothing = Trace([RankRecording(0, "a", []), RankRecording(1, "b", [])])
    assert nothing.seconds == 0
    assert nothing.steps_seen() == []
    assert {event["ph"] for event in nothing.events()} == {"M"}
