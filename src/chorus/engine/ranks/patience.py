"""How long the leader bears that nothing comes: no sign of life from a rank, or signs of life from all and no step.

Nothing here knows a clock or a thread: the watchdog of the followers tells the time, and acts.
"""

from __future__ import annotations

from chorus.messages.rank import Step

LEAST_SECONDS = 30.0
"""Whatever was measured: swapping or a busy machine may hold up any step for so long."""
TIMES = 10.0
"""A step may take so many times the longest of its shape so far."""
UNSEEN_SECONDS = 180.0
"""For a shape that was not computed in this group before: its kernels may have to be compiled."""
MOST_SECONDS = 540.0
"""Whatever was measured; whoever has slower steps says so in the settings."""
LINK_MARGIN_SECONDS = 60.0
"""How much longer a rank waits for another one's tensors than the leader does for the step."""


class StepPatience:
    """How long the leader waits for a step, by how long those of the same shape took. Belongs to one group: processes
    that are new have compiled nothing.
    """

    def __init__(self, given: float | None = None) -> None:
        """`given`: as long as this, whatever is measured."""
        self._given = given
        self._longest: dict[int, float] = {}
        self._slowest = 0.0
        self._seen: set[int] = set()

    @property
    def unseen(self) -> float:
        """For a shape that was not seen yet, or for whatever has no shape; never less than for one that was."""
        return self._given or max(UNSEEN_SECONDS, min(TIMES * self._slowest, MOST_SECONDS))

    def allowed(self, step: Step) -> float:
        shape = shape_of(step)
        if self._given or shape not in self._seen:
            return self.unseen
        return max(LEAST_SECONDS, min(TIMES * self._longest[shape], MOST_SECONDS))

    def took(self, step: Step, seconds: float, over: bool) -> None:
        """One wait for a step; `over`: it was the last. Before, a rank may still have to compile what it needs."""
        shape = shape_of(step)
        if seconds > self._longest.get(shape, -1.0):
            self._longest[shape] = seconds
            self._slowest = max(self._slowest, seconds)
        if over:
            self._seen.add(shape)


def shape_of(step: Step) -> int:
    """The same for steps that compute about as much: rows that decode or tokens of a prompt, up to a power of two."""
    size = len(step.feeds) if step.decode else step.tokens
    return 2 * ((size - 1).bit_length() if size else -1) + step.decode


def link_seconds(given: float | None) -> float:
    """How long a rank waits for another one's tensors. The leader alone decides who is to blame, so the others must
    still be waiting when it does: one that gave up first would seem to be the one that failed.
    """
    return (given or MOST_SECONDS) + LINK_MARGIN_SECONDS
