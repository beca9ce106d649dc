"""What engines told, one after the other: counters never go back, and nothing needs an engine that lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorus.messages.figures import Figure, figures_from_wire, figures_to_wire
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.engines import EngineFigures

HITS, RUNNING = declared.PREFIX_HITS.name, declared.RUNNING.name
SENT, AGE, STEPS = declared.RANK_SENT.name, declared.RANK_AGE.name, declared.ITERATION_TOKENS.name
PLACES = len(declared.ITERATION_TOKENS.buckets) + 1


def told(engine: EngineFigures) -> dict[tuple[str, tuple[str, ...]], Figure]:
    return {(figure.name, figure.labels): figure for figure in engine.figures()}


def value(engine: EngineFigures, name: str, *labels: str) -> float:
    return told(engine)[name, labels].value


def steps(*counts: int, sum: float) -> Figure:
    return Figure(STEPS, buckets=(*counts, *[0] * (PLACES - len(counts))), sum=sum)


def test_a_counter_goes_on_where_the_last_engine_left_it() -> None:
    engine = EngineFigures()
    engine.take(1.0, [Figure(HITS, value=10), steps(2, 1, sum=9.0)])
    engine.take(1.0, [Figure(HITS, value=12), steps(2, 3, sum=20.0)])
    engine.take(2.0, [Figure(HITS, value=1), steps(1, sum=1.0)])
    engine.take(3.0, [Figure(HITS, value=5)])
    assert value(engine, HITS) == 12 + 1 + 5
    assert told(engine)[STEPS, ()] == steps(3, 3, sum=21.0)


def test_what_a_dead_engine_counted_stays_and_what_it_held_does_not() -> None:
    engine = EngineFigures()
    engine.take(1.0, [Figure(HITS, value=10), Figure(RUNNING, value=3)])
    assert (engine.up, value(engine, RUNNING)) == (True, 3)
    engine.lose(1.0)
    assert (engine.up, value(engine, HITS)) == (False, 10)
    assert (RUNNING, ()) not in told(engine)


def test_an_engine_that_is_gone_for_long_takes_nothing_from_the_one_that_serves() -> None:
    engine = EngineFigures()
    engine.take(1.0, [Figure(RUNNING, value=3)])
    engine.take(2.0, [Figure(RUNNING, value=4)])
    engine.lose(1.0)
    assert (engine.up, value(engine, RUNNING)) == (True, 4)


def test_a_rank_that_was_replaced_begins_anew_under_the_same_leader() -> None:
    engine = EngineFigures()
    engine.take(1.0, [Figure(SENT, ("1",), 500), Figure(SENT, ("2",), 700)])
    engine.take(1.0, [Figure(SENT, ("2",), 800)])
    assert (value(engine, SENT, "1"), value(engine, SENT, "2")) == (500, 800)
    engine.take(1.0, [Figure(SENT, ("1",), 0), Figure(SENT, ("2",), 900)])
    engine.take(1.0, [Figure(SENT, ("1",), 40), Figure(SENT, ("2",), 900)])
    assert (value(engine, SENT, "1"), value(engine, SENT, "2")) == (540, 900)


def test_an_age_grows_while_nobody_tells_anything_new() -> None:
    now = iter([100.0, 103.0])
    engine = EngineFigures(clock=lambda: next(now))
    engine.take(1.0, [Figure(AGE, ("1",), 0.5)])
    assert value(engine, AGE, "1") == 3.5


@pytest.mark.parametrize(
    "figure",
    [
        Figure("chorus_unheard_of", value=1),
        Figure(HITS, ("one", "too many"), 1),
        Figure(SENT, (), 1),
        Figure(HITS, value=float("nan")),
        Figure(HITS, value=float("inf")),
        Figure(HITS, value=1, buckets=(1,)),
        Figure(STEPS, buckets=(1, 2), sum=3.0),
        Figure(STEPS, buckets=(1,) * PLACES, sum=float("nan")),
    ],
)
def test_what_is_not_declared_so_is_left_out(figure: Figure) -> None:
    engine = EngineFigures()
    engine.take(1.0, [figure])
    assert [each.name for each in engine.figures()] == [declared.ENGINE_UP.name]


def test_a_message_without_end_costs_no_more_than_a_long_one() -> None:
    def forever() -> Iterator[Figure]:
        number = 0
        while True:
            number += 1
            yield Figure(SENT, (str(number),), number)

    engine = EngineFigures()
    engine.take(1.0, forever())
    assert len(list(engine.figures())) <= 10_001


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.integers(0, 100), st.booleans()), max_size=30),
)
def test_whatever_engines_tell_no_counter_ever_goes_back(messages: list[tuple[float, int, bool]]) -> None:
    engine, last = EngineFigures(), 0.0
    for started_at, count, dies in messages:
        engine.take(started_at, [Figure(HITS, value=count)])
        assert value(engine, HITS) >= last
        last = value(engine, HITS)
        if dies:
            engine.lose(started_at)
            assert value(engine, HITS) == last


def test_figures_pass_the_wire_whole() -> None:
    sent = [Figure(SENT, ("1",), 12.0), steps(1, 2, 3, sum=4.5)]
    message = figures_to_wire(7.0, sent)
    assert (message.started_at, figures_from_wire(message)) == (7.0, sent)
