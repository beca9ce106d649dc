"""Takes threads back from the BLAS when something else needs the cores.

A product waits for the last of its threads. On a machine that was quiet when threads were tried and is busy now, one
thread that does not get its core can make every product ten times slower.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from chorus.messages.engine import Progress
from chorus.platform import use_threads
from chorus.platform.cpu import blas

EVERY = 64
"""Steps between two trials of fewer threads."""
STEPS = 3
"""How many with each number are compared, by the fastest: what a prompt or a client costs now and then is no matter."""
CLEARLY = 0.8
"""The part of the time that fewer threads may take at most to be kept."""

log = logging.getLogger("chorus.engine")


class ThreadWatch:
    """Hears of every step on its way to the clients. Now and then some run with fewer threads: if they are clearly
    faster it stays so.
    """

    def __init__(self, publish: Callable[[list[Progress]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._publish, self._clock = publish, clock
        self._more = self._fewer = 0
        self._rows = self._count = 0
        self._at = 0.0
        self._with_more: list[float] = []
        self._with_fewer: list[float] | None = None
        """None: there is no trial now."""

    def begin(self, more: int, fewer: int) -> None:
        """From now on; nothing is watched where there are no fewer threads to go back to."""
        self._more, self._fewer = more, fewer

    def __call__(self, news: list[Progress]) -> None:
        self._publish(news)
        if self._more > self._fewer:
            self._look(sum(bool(progress.tokens) for progress in news))

    def _look(self, rows: int) -> None:
        if not rows:
            return
        now = self._clock()
        took, self._at = now - self._at, now
        if rows != self._rows:  # streams came or went: nothing to compare with
            self._rows, self._with_more = rows, []
            self._end_trial()
            return
        self._count += 1
        if self._with_fewer is None:
            self._with_more = [*self._with_more[1 - STEPS :], took]
            if self._count >= EVERY and len(self._with_more) == STEPS:
                self._with_fewer = []
                blas.set_threads(self._fewer)
            return
        self._with_fewer.append(took)
        if len(self._with_fewer) > STEPS:  # the first had begun with more
            self._judge(self._with_more, self._with_fewer[1:])

    def _judge(self, more: Sequence[float], fewer: Sequence[float]) -> None:
        if min(fewer) > CLEARLY * min(more):
            self._end_trial()
            return
        use_threads(self._fewer)
        log.info(
            "the BLAS has %d instead of %d threads: others need the cores (a step takes %.1f instead of %.1f ms)",
            *(self._fewer, self._more, 1000 * min(fewer), 1000 * min(more)),
        )
        self._more = self._fewer

    def _end_trial(self) -> None:
        if self._with_fewer is not None:
            blas.set_threads(self._more)
        self._with_fewer, self._count = None, 0
