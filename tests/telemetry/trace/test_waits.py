from __future__ import annotations

from chorus.telemetry.phases import COMPUTE, IDLE, NOBODY, SCHEDULE, TRANSPORT, WAIT, Span
from chorus.telemetry.trace.waits import Reason, Timelines


def test_a_wait_is_for_the_rank_that_computes_meanwhile() -> None:
    wait = Span(0, 4, WAIT, 1)
    lines = Timelines({0: [wait], 1: [Span(0, 3, COMPUTE), Span(3, 4, TRANSPORT, 0)]})
    assert lines.reasons(0, wait) == [Reason(0, 3, 1, COMPUTE), Reason(3, 4, 1, TRANSPORT)]


def test_who_waits_for_somebody_that_waits_waits_for_whom_that_one_waits_for() -> None:
    wait = Span(0, 6, WAIT, 0)
    lines = Timelines(
        {
            2: [wait],
            0: [Span(0, 4, WAIT, 1), Span(4, 6, SCHEDULE)],
            1: [Span(0, 5, COMPUTE), Span(5, 6, WAIT, 2)],
        }
    )
    assert lines.reasons(2, wait) == [Reason(0, 4, 1, COMPUTE), Reason(4, 6, 0, SCHEDULE)]


def test_where_all_wait_in_a_circle_something_is_under_way() -> None:
    wait = Span(0, 2, WAIT, 0)
    lines = Timelines({1: [wait], 0: [Span(0, 1, WAIT, 1), Span(1, 2, COMPUTE)]})
    assert lines.reasons(1, wait) == [Reason(0, 1, NOBODY), Reason(1, 2, 0, COMPUTE)]


def test_of_a_rank_that_recorded_nothing_nobody_knows_what_it_did() -> None:
    wait = Span(0, 2, WAIT, 3)
    assert Timelines({0: [wait]}).reasons(0, wait) == [Reason(0, 2, NOBODY)]


def test_an_idle_leader_does_nothing_that_anybody_waits_for() -> None:
    wait = Span(0, 2, WAIT, 0)
    lines = Timelines({1: [wait], 0: [Span(0, 1, COMPUTE), Span(1, 3, IDLE)]})
    assert lines.reasons(1, wait) == [Reason(0, 1, 0, COMPUTE), Reason(1, 2, NOBODY)]


def test_reasons_cover_the_whole_of_a_wait() -> None:
    wait = Span(1, 9, WAIT, 1)
    lines = Timelines({0: [wait], 1: [Span(0, 2, COMPUTE), Span(3, 4, COMPUTE), Span(4, 5, COMPUTE)]})
    assert lines.reasons(0, wait) == [
        Reason(1, 2, 1, COMPUTE),
        Reason(2, 3, NOBODY),
        Reason(3, 5, 1, COMPUTE),
        Reason(5, 9, NOBODY),
    ]
