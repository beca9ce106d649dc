from __future__ import annotations

from functools import partial

import pytest

from tests.support.questions import ask


def two_is(number: int) -> None:
    assert number == 2, f"two is not {number}"


def everything_is_there() -> None:
    {}["not there"]


def test_every_question_is_asked_and_each_that_failed_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        ask(partial(two_is, 3), partial(two_is, 2), everything_is_there, partial(two_is, 4))
    said = str(caught.value)
    assert "two is: AssertionError: two is not 3" in said
    assert "two is: AssertionError: two is not 4" in said
    assert "everything is there: KeyError" in said
    assert "two is not 2" not in said


def test_nothing_is_said_where_all_is_well() -> None:
    ask(partial(two_is, 2))
