"""How long a leader waits for a step, and for a sign of life."""

from __future__ import annotations

import pytest

from chorus.engine.ranks.patience import (
    LEAST_SECONDS,
    LINK_MARGIN_SECONDS,
    MOST_SECONDS,
    UNSEEN_SECONDS,
    StepPatience,
    link_seconds,
    shape_of,
)
from chorus.messages.rank import Feed, Step


def decode(rows: int) -> Step:
    return Step(1, feeds=tuple(Feed(row, ()) for row in range(rows)), decode=True)


def prefill(tokens: int) -> Step:
    return Step(1, feeds=(Feed(1, (5,) * tokens),))


def test_steps_that_compute_about_as_much_have_one_shape() -> None:
    assert shape_of(decode(5)) == shape_of(decode(8)) != shape_of(decode(9))
    assert shape_of(prefill(65)) == shape_of(prefill(128)) != shape_of(prefill(129))
    different = [Step(1), *(kind(size) for kind in (decode, prefill) for size in (1, 2, 4, 8))]
    assert len({shape_of(step) for step in different}) == len(different)


def test_a_shape_is_known_once_a_step_of_it_is_over() -> None:
    patience = StepPatience()
    patience.took(decode(1), 0.1, over=False)
    assert patience.allowed(decode(1)) == UNSEEN_SECONDS
    patience.took(decode(1), 0.2, over=True)
    assert patience.allowed(decode(1)) == LEAST_SECONDS
    assert patience.allowed(decode(2)) == patience.allowed(prefill(1)) == UNSEEN_SECONDS


@pytest.mark.parametrize(("longest", "allowed"), [(1.0, LEAST_SECONDS), (7.0, 70.0), (1000.0, MOST_SECONDS)])
def test_ten_times_the_longest_wait_of_a_shape_is_borne(longest: float, allowed: float) -> None:
    patience = StepPatience()
    for seconds in (0.5, longest, 0.1):
        patience.took(prefill(100), seconds, over=True)
    assert patience.allowed(prefill(128)) == allowed


def test_what_was_never_seen_is_not_borne_for_less_than_what_was() -> None:
    patience = StepPatience()
    patience.took(prefill(100), 30.0, over=True)
    assert patience.allowed(prefill(1000)) == patience.unseen == 300.0


def test_a_given_time_is_used_as_it_is() -> None:
    patience = StepPatience(2.0)
    assert patience.allowed(decode(1)) == patience.unseen == 2.0
    patience.took(decode(1), 50.0, over=True)
    assert patience.allowed(decode(1)) == 2.0


@pytest.mark.parametrize("given", [None, 20.0, 5000.0])
def test_ranks_wait_for_each_other_longer_than_their_leader_does(given: float | None) -> None:
    patience = StepPatience(given)
    patience.took(decode(1), 1e9, over=True)
    longest = max(patience.allowed(decode(1)), patience.allowed(decode(2)), patience.unseen)
    assert link_seconds(given) == longest + LINK_MARGIN_SECONDS
