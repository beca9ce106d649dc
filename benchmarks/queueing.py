"""What a step costs the scheduler when many wait: its own CPU time, with ranks that answer at once."""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from chorus.engine.prefix.index import PrefixIndex
from chorus.engine.room import UNLIMITED, RankRoom, Room
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Request
from chorus.messages.rank import Keeping, Step

ROWS = 32
FEW, MANY = 10, 10_000
PROMPT, ANSWER = 24, 12
OWNERS = 8
TOKEN = 5
WARM_STEPS = 60
"""Until streams end and begin all the time."""


@dataclass(frozen=True)
class Scene:
    """Who waits, and for what."""

    name: str
    room: Room = UNLIMITED
    cancels: bool = False
    """Of those who wait, one leaves after every step and another comes."""


def _room(rows: int) -> Room:
    """For so many of these streams, a batch that is not full, and no more."""
    return Room((RankRoom(budget=2 * rows * 256, per_token=1),))


SCENES = (
    Scene("the batch is full"),
    Scene("memory is full", _room(ROWS // 2)),
    Scene("clients leave", cancels=True),
)


class Queue:
    """A scheduler with so many in its queue, always: for each that ends another one comes."""

    def __init__(self, scene: Scene, waiting: int, seed: int = 1) -> None:
        self._scene, self._waiting = scene, waiting
        self._chance = random.Random(seed)
        self._names = map(str, count(1))
        self._in_line: deque[str] = deque()
        limits = SchedulerLimits(
            context=4096, vocabulary=50_000, room=scene.room, max_batch=ROWS, max_queue=2 * (waiting + ROWS)
        )
        self.scheduler = Scheduler(limits, prefixes=PrefixIndex(Keeping(anywhere=True), scene.room))
        self._flight: deque[Step] = deque()
        self._come()

    def step(self) -> None:
        """One sent, and the one before it brought home, as with look-ahead."""
        if step := self.scheduler.next_step():
            self._flight.append(step)
        while len(self._flight) > (1 if step else 0):
            done = self._flight.popleft()
            self.scheduler.finish(done, {feed.sequence: TOKEN for feed in done.feeds if not feed.partial})
        if self._scene.cancels:
            self.scheduler.cancel(self._in_line[-1 - self._chance.randrange(min(FEW, len(self._in_line)))])
        self._come()

    def _come(self) -> None:
        while self.scheduler.queued < self._waiting:
            prompt = tuple(self._chance.choices(range(50_000), k=PROMPT))
            request = Request(next(self._names), prompt, ANSWER, owner=f"owner {self._chance.randrange(OWNERS)}")
            assert self.scheduler.submit(request) is None
            self._in_line.append(request.id)
            if len(self._in_line) > FEW:
                self._in_line.popleft()


def step_seconds(scene: Scene, waiting: int, steps: int, clock: Callable[[], float] = time.thread_time) -> float:
    """CPU seconds of a step, the newcomers' way into the queue included."""
    queue = Queue(scene, waiting)
    for _ in range(WARM_STEPS):
        queue.step()
    begin = clock()
    for _ in range(steps):
        queue.step()
    return (clock() - begin) / steps


def steps_taken(scene: Scene, waiting: int, steps: int) -> int:
    """Of the interpreter, that is lines run in our own code: the same each time, whatever the machine does."""
    lines = 0

    def count_line(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count_line

    queue = Queue(scene, waiting)
    for _ in range(WARM_STEPS):
        queue.step()
    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        for _ in range(steps):
            queue.step()
    finally:
        sys.settrace(before)
    return lines
