"""Whoever was held up judges nobody."""

from __future__ import annotations

import pytest

from chorus.platform.process.looks import Looks


def test_a_watchdog_that_was_held_up_judges_nobody_for_that_time() -> None:
    looks = Looks(10.0, 0.5)
    assert not looks.look(10.6, 0.5)
    assert looks.quiet(8.0, now=10.6) == pytest.approx(0.6), "nothing counts from before it began"
    assert not looks.look(11.2, 0.5)
    assert looks.quiet(10.4, now=11.2) == pytest.approx(0.8)
    assert looks.look(19.0, 0.5)
    assert looks.quiet(10.4, now=19.0) == 0.0
    assert not looks.look(19.5, 0.5)
    assert looks.quiet(10.4, now=19.5) == 0.5
    assert looks.quiet(19.3, now=19.5) == pytest.approx(0.2)
