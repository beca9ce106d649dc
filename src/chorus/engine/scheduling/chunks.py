"""How many prompt tokens are fed at once: so many as were set, or as many as fit into the pause that running streams
may make for them, by what the steps before have taken.

Nothing here knows a clock: the scheduler tells how long steps took.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

from chorus.messages.rank import Step

LEAST = 16
"""Streams wait for so many tokens however long they take: fewer cost nearly as much."""
SLOW_STEPS = 3.0
"""Prompts may take so many times as long as a decode, however short the pause is to be: where every forward is slow,
they would hardly be read otherwise. So a stream keeps a quarter of its speed, or pauses no longer than was asked for.
"""
ALONE_SECONDS = 1.0
"""While nobody decodes, whoever comes waits for the chunk that is being read."""
STAGE_CHUNKS = 2
"""A pipeline's stages all compute only where a prompt makes some chunks for each of them."""
SAMPLES = 3
"""Of each size the last so many steps count: enough to pass over one that something else held up, and few enough to
follow a prompt to where attention takes longer.
"""
DECODES = 5
TIMES_PROPORTION = 1.25
"""A chunk twice as long takes at most a little more than twice as long."""


class Chunks(Protocol):
    @property
    def limit(self) -> float:
        """What may be fed between two decodes of a stream may cost so much."""
        ...

    def most(self, left: int, decoding: bool) -> int:
        """How many tokens to feed at once, out of so many that all prompts have left."""
        ...

    def cost(self, tokens: int) -> float:
        """Of one forward."""
        ...

    def within(self, cost: float) -> int:
        """How many tokens one forward may have to cost no more."""
        ...


@dataclass(frozen=True, slots=True)
class FixedChunks:
    """So many tokens, whatever they take."""

    size: int

    @property
    def limit(self) -> float:
        return self.size

    def most(self, left: int, decoding: bool) -> int:
        return self.size

    def cost(self, tokens: int) -> float:
        return tokens

    def within(self, cost: float) -> int:
        return int(cost)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Between which sizes chunks are chosen by what they take."""

    usual: int = 512
    """While nothing is known, and while nobody decodes never less."""
    most: int = 4096
    pause_seconds: float = 0.1
    """How long streams may wait for prompts between two of their tokens."""
    stages: int = 1


USUAL_CHUNKS = ChunkLimits()


@dataclass(frozen=True, slots=True)
class _Sent:
    step: Step
    at: float


@dataclass(frozen=True, slots=True)
class _Home:
    step: Step
    sent: float
    at: float


class StepCosts:
    """What steps take, from when they were sent and came home.

    A leader may bring a step home late: to launch the next one can take as long as computing it. Then the time between
    two homecomings is that of the step behind, and not of the one that came home. So only such times are believed as
    are the same either way: of a step that was alone, of two alike in a row, of a chunk with a decode before it and
    behind it.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, deque[tuple[float, int]]] = {}
        """By the number of bits in how many tokens they had: seconds and tokens. What was seen last stands last."""
        self._decodes: deque[float] = deque(maxlen=DECODES)
        self.points: list[tuple[int, float]] = []
        """Tokens of chunks, and seconds, both growing."""
        self._under_way: deque[_Sent] = deque()
        self._homes: deque[_Home] = deque(maxlen=2)

    def sent(self, step: Step, now: float) -> None:
        self._under_way.append(_Sent(step, now))

    def home(self, step: Step, now: float) -> None:
        unsure = False
        while self._under_way and self._under_way[0].step.number < step.number:
            # One before it ended otherwise, with an embedding for instance: nobody knows when.
            self._under_way.popleft()
            self._homes.clear()
            unsure = True
        if not self._under_way or self._under_way[0].step.number != step.number:
            return
        sent = self._under_way.popleft().at
        if not unsure and (seconds := self._seconds(step, sent, now)) is not None:
            self.note(step, seconds)
        self._homes.append(_Home(step, sent, now))

    def lose(self) -> None:
        """Nothing that is under way will come home."""
        self._under_way.clear()
        self._homes.clear()

    def note(self, step: Step, seconds: float) -> None:
        if step.decode:
            self._decodes.append(seconds)
        elif step.tokens:
            size = step.tokens.bit_length()
            samples = self._chunks.pop(size, None) or deque(maxlen=SAMPLES)
            samples.append((seconds, step.tokens))
            self._chunks[size] = samples
            self.points = self._agreed()

    def _seconds(self, step: Step, sent: float, now: float) -> float | None:
        before = self._homes[-1] if self._homes else None
        behind = self._under_way[0].step if self._under_way else None
        if behind is None:
            return now - sent if before is None or before.at <= sent else None
        if before is None or before.at < sent:
            return None
        if _kind(step) == _kind(behind):
            return now - before.at
        if not step.decode and before.step.decode and behind.decode and before.sent <= self._homes[0].at < before.at:
            both = now - self._homes[0].at
            # Decodes may have become shorter since one was seen: a chunk takes half of the time at least.
            return max(both / 2, both - self.decode)
        return None

    @property
    def decode(self) -> float:
        """Seconds of a decode; 0 where none was seen."""
        return median_low(self._decodes) if self._decodes else 0.0

    def chunk(self, tokens: int) -> float | None:
        """Seconds of a forward with so many prompt tokens, which never fall as these grow; None where none was seen."""
        if not self.points:
            return None
        before = 0, min(self.decode, self.points[0][1])
        for after in self.points:
            if tokens <= after[0]:
                return before[1] + (after[1] - before[1]) * (tokens - before[0]) / (after[0] - before[0])
            before = after
        return before[1] * tokens / before[0]

    def _agreed(self) -> list[tuple[int, float]]:
        """What was seen last is believed; what was seen of other sizes before, as far as it agrees with that."""
        points: list[tuple[int, float]] = []
        for samples in reversed(self._chunks.values()):
            seconds, tokens = median_low(samples)
            place = bisect_left(points, (tokens, 0.0))
            if place:
                fewer, least = points[place - 1]
                seconds = min(max(seconds, least), TIMES_PROPORTION * least * tokens / fewer)
            if place < len(points):
                more, most = points[place]
                seconds = max(min(seconds, most), most * tokens / more / TIMES_PROPORTION)
            points.insert(place, (tokens, seconds))
        return points


@dataclass(frozen=True, slots=True)
class MeasuredChunks:
    """As many tokens as fit into the pause, by what others took."""

    costs: StepCosts
    limits: ChunkLimits

    @property
    def limit(self) -> float:
        # A client also waits for the decode that follows.
        return max(self.limits.pause_seconds - self.costs.decode, SLOW_STEPS * self.costs.decode)

    def most(self, left: int, decoding: bool) -> int:
        if not self.costs.points:
            return self.limits.usual
        if decoding:
            return max(LEAST, _power(self.within(self.limit)))
        enough = self.limits.most
        if self.limits.stages > 1:
            enough = min(enough, left // (STAGE_CHUNKS * self.limits.stages))
        return max(self.limits.usual, _power(min(enough, self.within(ALONE_SECONDS))))

    def cost(self, tokens: int) -> float:
        seconds = self.costs.chunk(tokens)
        return self.limit * tokens / self.limits.usual if seconds is None else seconds

    def within(self, cost: float) -> int:
        return bisect_right(range(1, self.limits.most + 1), cost, key=self.cost)


def _kind(step: Step) -> tuple[bool, int]:
    """The same for steps that take about as long."""
    return step.decode, 0 if step.decode else step.tokens.bit_length()


def _power(tokens: int) -> int:
    """The largest power of two in it: few sizes are seen often, and so known well."""
    return 1 << tokens.bit_length() - 1 if tokens else 0
