"""How far something is, told with its rate and the time that is left: as a bar, or in lines now and then."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from chorus.platform.progress import LINE_SECONDS, Pace, Progress, Steady, duration
from chorus.platform.terminal import _Lines, harmless, shown

GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_rate_and_the_time_left_are_told_once_something_has_moved(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.figures(Progress("copying", 0, 4 * GIB)) == "0%, 0 MiB of 4.0 GiB"
    clock.now = 2.0
    assert pace.figures(Progress("copying", GIB, 4 * GIB)) == "25%, 1.0 GiB of 4.0 GiB, 536.9 MB/s, 6 s left"
    clock.now = 20.0
    assert pace.figures(Progress("copying", GIB, 4 * GIB)) == "25%, 1.0 GiB of 4.0 GiB", "it stands still"
    assert pace.figures(Progress("copying", 4 * GIB, 4 * GIB)) == "100%, 4.0 GiB of 4.0 GiB"


def test_the_rate_is_that_of_lately_and_of_one_thing(clock: Clock) -> None:
    pace = Pace(clock)
    for second in range(30):
        clock.now = float(second)
        slow = Progress("downloading", min(second, 10) * 10**8 + max(0, second - 10) * 10**6, 10**10)
        told = pace.figures(slow)
    assert "1.0 MB/s" in told
    assert pace.figures(Progress("loading", 10, 100)) == "10%, 0 MiB of 0 MiB", "another thing begins anew"


def test_what_is_no_number_of_bytes_is_told_as_a_share(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.figures(Progress.of_share("warming up", 0.0)) == ""
    assert pace.figures(Progress.of_share("warming up", 0.25)) == "25%"
    clock.now = 3.0
    assert pace.figures(Progress.of_share("warming up", 0.5)) == "50%, 3 s left"
    assert pace.figures(Progress("reading", 5 << 20, None)) == "5 MiB"


@pytest.mark.parametrize(("seconds", "said"), [(0.1, "1 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_told_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def lines_of(tell: Callable[[Console], None]) -> list[str]:
    written = io.StringIO()
    tell(Console(file=written, width=40))
    return written.getvalue().splitlines()


def test_without_a_terminal_a_line_comes_for_what_is_new_and_now_and_then(clock: Clock) -> None:
    def tell(console: Console) -> None:
        lines = _Lines(console, Pace(clock), clock)
        for tenth in range(100):
            clock.now = tenth / 10
            for node in ("mini", "studio"):
                lines.tell(Progress(f"{node}: [red]copying[/]\x1b[2J", tenth * 10**6, 10**8))

    told = lines_of(tell)
    assert told[:2] == [
        "mini: [red]copying[/][2J: 0%, 0 MiB of 95 MiB",
        "studio: [red]copying[/][2J: 0%, 0 MiB of 95 MiB",
    ]
    assert len(told) <= 2 + 10.0 / LINE_SECONDS
    assert "MB/s" not in told[0]


def test_in_words_it_is_the_same_for_a_while(clock: Clock) -> None:
    steady, told = Steady(clock), set()
    for tenth in range(100):
        clock.now = tenth / 10
        told.add(steady.text(Progress("mini: copying", tenth * 10**6, 10**8)))
    assert len(told) == 10.0 / LINE_SECONDS
    assert any("10.0 MB/s" in text and "left" in text for text in told)


def test_in_a_terminal_it_is_a_bar_of_which_nothing_is_left() -> None:
    written = io.StringIO()
    with shown("finding it", Console(file=written, width=120, force_terminal=True)) as report:
        report(Progress("copying [red]it[/]", GIB, 2 * GIB))
    drawn = written.getvalue()
    assert "copying [red]it[/]" in drawn
    assert "50%, 1.0 GiB of 2.0 GiB" in drawn
    assert drawn.rstrip("\r\n").endswith("\x1b[2K"), "the bar is erased"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("a\x1b[2Jb\x9b1m\x07\x00\x7f\r", "a[2Jb1m"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\u202ebackwards\u2066", "backwards"),
        ("one\u2028two", "one\ntwo"),
        ("\ud800half", "half"),
        ("family 👨\u200d👩\u200d👧 naïve", "family 👨\u200d👩\u200d👧 naïve"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left_of_a_strangers_text(said: str, left: str) -> None:
    assert harmless(said) == left
