"""Where everything that is not data is shown: standard error, in colour where that is a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from chorus.platform.progress import LINE_SECONDS, Pace, Progress

console = Console(stderr=True, highlight=False)

_MOST_LABELS = 100
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or cannot write, but for new lines and tabs: control characters, what turns the direction of
writing around, halves of characters."""


def warn(message: str) -> None:
    """Tell somebody about something that does not keep the command from going on."""
    console.print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


def harmless(text: str) -> str:
    """Text of strangers, a model's among them, without anything that a terminal would obey."""
    return _OBEYED.sub("", text.replace("\u2028", "\n").replace("\u2029", "\n"))


@contextmanager
def shown(first: str = "", where: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """How far something is: in a terminal a bar of which nothing is left, elsewhere a plain line now and then.

    `with shown("finding a model") as report: report(Progress(…))`
    """
    where, pace = where or console, Pace()
    if not where.is_terminal:
        yield _Lines(where, pace).tell
        return
    from rich import progress as rich  # few commands show one

    label, figures = (rich.TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[figures]}"))
    with rich.Progress(rich.SpinnerColumn(), label, rich.BarColumn(), figures, console=where, transient=True) as bar:
        task = bar.add_task(harmless(first), total=None, figures="")

        def report(seen: Progress) -> None:
            bar.update(
                task,
                description=harmless(seen.label),
                completed=seen.done,
                total=seen.total,
                figures=pace.figures(seen),
            )

        yield report


class _Lines:
    """What is new is told at once, what is known now and then."""

    def __init__(self, console: Console, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._pace = pace
        self._clock = clock
        self._labels: set[str] = set()
        self._next = 0.0

    def tell(self, seen: Progress) -> None:
        figures, now = self._pace.figures(seen), self._clock()
        new = seen.label not in self._labels and len(self._labels) < _MOST_LABELS
        over = seen.total is not None and seen.done >= seen.total
        if now < self._next if not new else over:  # what was over before anybody saw it is no news
            return
        if new:
            self._labels.add(seen.label)
        self._next = now + LINE_SECONDS
        line = f"{seen.label}: {figures}" if figures else seen.label
        self._console.print(harmless(line), markup=False, soft_wrap=True)
