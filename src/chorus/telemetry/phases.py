"""What the main thread of a rank does with its time: at every moment one phase, always counted, recorded when asked.

A change of phase costs a fraction of a microsecond, so that nobody needs to switch this on. MLX computes when it is
asked for numbers, in threads of its own: docs/tracing.md says what each phase can tell, and what it cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

PHASES = ("compute", "wait", "transport", "sampling", "schedule", "idle")
COMPUTE, WAIT, TRANSPORT, SAMPLING, SCHEDULE, IDLE = range(len(PHASES))
"""Numbers on the wire and in lists of seconds: a new phase goes to the end."""

LEADER = 0
NOBODY = -1
MOST_SPANS = 50_000
_AGREE_SECONDS = 1e-3
_LOOKS = 20


class Span(NamedTuple):
    """A stretch of time in one phase, by the rank's own monotonic clock."""

    begin: float
    end: float
    phase: int
    rank: int = NOBODY
    """Whom a wait is for, or with whom something is exchanged."""
    step: int = 0
    """Which it was for, or the last one that there was; 0: none yet."""
    sent_bytes: int = 0
    received_bytes: int = 0


class StepFacts(NamedTuple):
    kind: str
    rows: int
    tokens: int


@dataclass
class Recording:
    """What is kept of one thread's phases for a while; at most so much, and not longer than that."""

    began: float
    until: float
    most: int
    spans: list[Span] = field(default_factory=list)
    steps: dict[int, StepFacts] = field(default_factory=dict)
    full: bool = False


class PhaseClock:
    """Kept by one thread, which enters phases; the others may look, and record."""

    __slots__ = (
        *("_last", "_now", "_recording", "_seconds", "_state", "_told", "_waited"),
        *("began", "received", "sent", "step"),
    )

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.began = now()
        self._state = (self.began, IDLE, NOBODY)
        self._seconds = [0.0] * len(PHASES)
        self._told = [0.0] * len(PHASES)
        self._waited: dict[int, float] = {}
        self._recording: Recording | None = None
        self._last: Recording | None = None
        self.step = 0
        """Whose phases these are: set behind the change of phase."""
        self.sent = self.received = 0
        """Bytes that the phase under way has passed on or taken: set by whoever exchanges them."""

    def enter(self, phase: int, rank: int = NOBODY) -> int:
        """From now on it is this phase, for or with that rank; answers the one before."""
        now = self._now()
        since, before, peer = self._state
        self._seconds[before] += now - since
        if before == WAIT:
            self._waited[peer] = self._waited.get(peer, 0.0) + now - since
        if self._recording is not None:
            self._keep(self._recording, Span(since, now, before, peer, self.step, self.sent, self.received))
        self._state = (now, phase, rank)
        return before

    def seconds(self) -> list[float]:
        """Of each phase since the process began, the one under way too. From any thread; no figure ever shrinks."""
        for _ in range(_LOOKS):
            since, phase, _ = self._state
            seconds = list(self._seconds)
            # Whoever looks in the middle of a change sees a sum that does not fit its time.
            if abs(sum(seconds) - (since - self.began)) < _AGREE_SECONDS:
                seconds[phase] += max(0.0, self._now() - since)
                self._told = list(map(max, self._told, seconds))
                break
        return list(self._told)

    def waited(self) -> list[float]:
        """Seconds of waits that are over, by the number of the rank that was waited for. From any thread."""
        waited = dict(self._waited)
        return [waited.get(rank, 0.0) for rank in range(max(waited, default=NOBODY) + 1)]

    @property
    def recording(self) -> bool:
        return self._recording is not None

    @property
    def held(self) -> bool:
        """Whether somebody has asked for a recording and not taken it yet; it may be full."""
        return self._last is not None

    def record(self, seconds: float, most: int = MOST_SPANS) -> float:
        """Keep spans from now on, for at most so long; answers when that began. What was kept before is gone."""
        now = self._now()
        self.sent = self.received = 0
        self._last = self._recording = Recording(now, now + seconds, most)
        return now

    def describe_step(self, number: int, kind: str, rows: int, tokens: int) -> None:
        recording = self._recording
        if recording is not None and len(recording.steps) < recording.most:
            recording.steps[number] = StepFacts(kind, rows, tokens)

    def take(self) -> Recording | None:
        """Keep no more, and hand out what was kept, the phase under way too; None where nobody had asked for it."""
        recording, self._last, self._recording = self._last, None, None
        if recording is None:
            return None
        spans, now = list(recording.spans), min(self._now(), recording.until)
        since, phase, peer = self._state
        # The thread may be in the middle of a change, with its last span kept and its next one not begun.
        since = max(since, spans[-1].end if spans else recording.began)
        if not recording.full and since < now:
            spans.append(Span(since, now, phase, peer, self.step, self.sent, self.received))
        clipped = (span._replace(begin=max(span.begin, recording.began), end=min(span.end, now)) for span in spans)
        recording.spans = [span for span in clipped if span.begin < span.end]
        return recording

    def _keep(self, recording: Recording, span: Span) -> None:
        self.sent = self.received = 0
        recording.spans.append(span)
        recording.full = len(recording.spans) >= recording.most
        if recording.full or span.end >= recording.until:
            self._recording = None


clock = PhaseClock()
"""Of this process's main thread."""
