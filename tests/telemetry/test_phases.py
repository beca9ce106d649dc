from __future__ import annotations

import itertools
import sys
import threading
import time
from itertools import pairwise

import pytest

from chorus.telemetry.phases import (
    COMPUTE,
    IDLE,
    NOBODY,
    PHASES,
    SAMPLING,
    SCHEDULE,
    TRANSPORT,
    WAIT,
    PhaseClock,
    Span,
    StepFacts,
)
from chorus.telemetry.trace.wire import recording_to_wire, spans_from_wire, steps_from_wire


class Hands:
    """A clock that stands still until somebody moves it."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> PhaseClock:
    return PhaseClock(hands)


def spend(hands: Hands, clock: PhaseClock, seconds: float, phase: int, rank: int = NOBODY) -> None:
    clock.enter(phase, rank)
    hands.at += seconds


def told(clock: PhaseClock) -> dict[str, float]:
    return {name: seconds for name, seconds in zip(PHASES, clock.seconds(), strict=True) if seconds}


def test_every_second_belongs_to_one_phase(clock: PhaseClock, hands: Hands) -> None:
    hands.at += 5
    spend(hands, clock, 2, COMPUTE)
    spend(hands, clock, 3, WAIT, 2)
    spend(hands, clock, 1, TRANSPORT, 2)
    spend(hands, clock, 4, COMPUTE)
    assert told(clock) == {"idle": 5, "compute": 6, "wait": 3, "transport": 1}
    assert sum(clock.seconds()) == hands.at - clock.began


def test_the_phase_under_way_is_counted_before_it_ends(clock: PhaseClock, hands: Hands) -> None:
    spend(hands, clock, 3, WAIT, 1)
    assert told(clock) == {"wait": 3}
    hands.at += 2
    assert told(clock) == {"wait": 5}


def test_waits_are_counted_by_whom_they_are_for(clock: PhaseClock, hands: Hands) -> None:
    for seconds, rank in ((1, 0), (2, 3), (4, 0)):
        spend(hands, clock, seconds, WAIT, rank)
    clock.enter(COMPUTE)
    assert clock.waited() == [5, 0, 0, 2]


def test_a_phase_gives_way_to_the_one_before_it(clock: PhaseClock, hands: Hands) -> None:
    spend(hands, clock, 1, COMPUTE)
    before = clock.enter(WAIT, 1)
    hands.at += 2
    spend(hands, clock, 3, before)
    assert told(clock) == {"compute": 4, "wait": 2}


def test_nothing_is_kept_unless_somebody_records(clock: PhaseClock, hands: Hands) -> None:
    spend(hands, clock, 1, COMPUTE)
    assert not clock.recording
    assert clock.take() is None


def test_a_recording_has_every_phase_of_its_time_without_a_gap(clock: PhaseClock, hands: Hands) -> None:
    spend(hands, clock, 1, COMPUTE)
    began = clock.record(60)
    clock.describe_step(7, "decode", 2, 2)
    hands.at += 1
    spend(hands, clock, 2, WAIT, 1)
    clock.step = 7
    spend(hands, clock, 3, TRANSPORT, 1)
    clock.received = 512
    spend(hands, clock, 4, SAMPLING)
    recording = clock.take()
    assert recording is not None
    assert recording.spans == [
        Span(began, began + 1, COMPUTE),
        Span(began + 1, began + 3, WAIT, 1, 7),
        Span(began + 3, began + 6, TRANSPORT, 1, 7, received_bytes=512),
        Span(began + 6, began + 10, SAMPLING, step=7),
    ]
    assert recording.steps == {7: StepFacts("decode", 2, 2)}
    assert not clock.recording


def test_a_recording_keeps_at_most_so_many_spans(clock: PhaseClock, hands: Hands) -> None:
    clock.record(60, most=3)
    for _ in range(10):
        spend(hands, clock, 1, COMPUTE)
    recording = clock.take()
    assert recording is not None
    assert recording.full
    assert len(recording.spans) <= 3
    assert recording.spans[-1].end - recording.spans[0].begin < 10


def test_a_recording_that_nobody_ends_ends_by_itself(clock: PhaseClock, hands: Hands) -> None:
    began = clock.record(5)
    for _ in range(10):
        spend(hands, clock, 2, SCHEDULE)
    assert not clock.recording
    recording = clock.take()
    assert recording is not None
    assert recording.spans[-1].end == began + 5
    assert not recording.full


def test_a_recording_travels_whole(clock: PhaseClock, hands: Hands) -> None:
    clock.record(60)
    clock.describe_step(3, "prefill", 1, 40)
    spend(hands, clock, 1, WAIT, 2)
    spend(hands, clock, 1, TRANSPORT, 2)
    clock.step, clock.sent = 3, 4096
    spend(hands, clock, 1, IDLE)
    recording = clock.take()
    assert recording is not None
    message = recording_to_wire(recording)
    assert spans_from_wire(message) == recording.spans
    assert steps_from_wire(message) == recording.steps


def test_a_recording_with_an_unknown_phase_or_a_short_column_is_refused(clock: PhaseClock, hands: Hands) -> None:
    clock.record(60)
    spend(hands, clock, 1, COMPUTE)
    spend(hands, clock, 1, COMPUTE)
    message = recording_to_wire(clock.take())
    message.phases[0] = len(PHASES)
    with pytest.raises(ValueError, match="does not know"):
        spans_from_wire(message)
    del message.phases[:]
    with pytest.raises(ValueError, match=r"shorter|longer"):
        spans_from_wire(message)


def test_whoever_looks_from_another_thread_never_sees_a_figure_shrink() -> None:
    clock, over = PhaseClock(), threading.Event()
    looks: list[list[float]] = []

    def look() -> None:
        while not over.is_set():
            looks.append(clock.seconds())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        deadline = time.monotonic() + 60
        for number in itertools.count():
            clock.enter(number % len(PHASES), number % 3)
            # The other thread has its turns when the system gives it some.
            if number >= 20_000 and (len(looks) > 1 or time.monotonic() > deadline):
                break
    finally:
        over.set()
        watcher.join(60)
        sys.setswitchinterval(before)
    assert len(looks) > 1
    for earlier, later in pairwise(looks):
        assert all(a <= b for a, b in zip(earlier, later, strict=True))
