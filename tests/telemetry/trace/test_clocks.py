from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chorus.telemetry.trace.clocks import Offset, Ping, offset, over

seconds = st.floats(0, 10)
pings = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=20)


def asked(true: float, ways: list[tuple[float, float, float]]) -> list[Ping]:
    """Questions to a clock that is ahead by `true`: each after a pause, so long on the way there, so long back."""
    at, found = 100.0, []
    for pause, there, back in ways:
        at += pause
        found.append(Ping(at, at + there + true, at + there + back))
        at += there + back
    return found


def test_the_fastest_answer_counts() -> None:
    found = offset(asked(2.0, [(1, 3, 1), (1, 0.2, 0.1), (1, 0, 5)]))
    assert abs(found.seconds - 2.05) < 1e-9
    assert abs(found.error - 0.15) < 1e-9


def test_a_moment_there_is_told_by_our_clock() -> None:
    assert Offset(2.0).here(1002.5) == 1000.5


@given(true=st.floats(-1e6, 1e6), ways=pings)
def test_the_true_offset_is_never_outside_the_error(true: float, ways: list[tuple[float, float, float]]) -> None:
    found = offset(asked(true, ways))
    assert abs(found.seconds - true) <= found.error + 1e-6


@given(before=st.floats(-10, 10), drift=st.floats(-0.1, 0.1), ways=pings, later=pings)
def test_the_offset_over_a_time_holds_at_its_begin_and_at_its_end(
    before: float, drift: float, ways: list[tuple[float, float, float]], later: list[tuple[float, float, float]]
) -> None:
    found = over(offset(asked(before, ways)), offset(asked(before + drift, later)))
    assert abs(found.seconds - before) <= found.error + 1e-9
    assert abs(found.seconds - (before + drift)) <= found.error + 1e-9
