"""What a model is made to do in the parity test, on one stage or on many alike.

Every logits row is kept with the tokens its sequence had been fed, so that it can also be held against a single
forward over all those tokens. Where they are the beginning of another sequence, one such forward serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from chorus.messages.rank import Part
from chorus.rank.cache import caches
from chorus.rank.cache.caches import CacheError
from chorus.rank.cache.store import SegmentStore, keeping
from chorus.rank.pipeline.stage import Stage

History = tuple[int, ...]
Row = tuple[History, mx.array]

PROMPT: History = (5, 17, 99, 3, 42, 60, 7, 81, 23, 11, 90, 2, 64, 33, 71, 8, 54, 19, 101, 46, 12, 88, 37, 70)
OTHER: History = (29, 115, 6, 51, 77, 9)


@dataclass
class Running:
    """Sequences that share a cache on every stage: one alone, or the rows of a batch."""

    histories: list[History]
    caches: list[list[Any]]


class Machine:
    """All stages of a model in one process, each with caches of its own."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.rows: dict[str, list[Row]] = {}
        self.column = ""

    def start(self) -> Running:
        return Running([()], [stage.new_cache() for stage in self.stages])

    def feed(self, running: Running, *tokens: Sequence[int], logits: bool = True) -> None:
        """Each row's next tokens."""
        running.histories = [past + tuple(new) for past, new in zip(running.histories, tokens, strict=True)]
        passed: list[mx.array] | None = None
        for stage, cache in zip(self.stages, running.caches, strict=True):
            fed = mx.array([list(new) for new in tokens])
            if passed is not None and not stage.every_stage_reads_tokens:
                # Over a collective a later stage does not know them: the next token is not sampled yet.
                fed = mx.zeros_like(fed)
            passed = stage.forward(fed, cache, passed, logits=logits)
        assert passed is not None
        mx.eval(passed, [caches.arrays(cache) for cache in running.caches])
        if logits:
            rows = zip(running.histories, passed[0].astype(mx.float32), strict=True)
            self.rows.setdefault(self.column, []).extend(rows)

    def filled(self, prompt: Sequence[int]) -> Running:
        running = self.start()
        self.feed(running, prompt, logits=False)
        return running

    def fork(self, running: Running, length: int | None = None) -> Running:
        """Another sequence that begins with what is stored of this one: all of it, or the first `length` tokens."""
        stop = len(running.histories[0])
        taken = stop if length is None else length
        copies = []
        for stage, cache in zip(self.stages, running.caches, strict=True):
            allowed = keeping(stage.new_cache(), ())
            if allowed.refusal or not (allowed.anywhere or taken == stop or stop <= allowed.reach):
                raise CacheError(allowed.refusal or f"a cache of {stop} tokens cannot be cut to {taken}")
            store = SegmentStore()
            store.take(1, cache, 0, stop, state=True)
            copies.append(store.join([Part(1, taken)], stage.new_cache()))
        return Running([running.histories[0][:taken]], copies)

    def merge(self, parts: Sequence[Running]) -> Running:
        columns = zip(*(part.caches for part in parts), strict=True)
        return Running(
            [past for part in parts for past in part.histories], [caches.merge(column) for column in columns]
        )

    def join(self, batch: Running, arriving: Running) -> None:
        pairs = zip(batch.caches, self.merge([arriving]).caches, strict=True)
        batch.caches = [caches.extend(cache, other) for cache, other in pairs]
        batch.histories += arriving.histories

    def keep(self, batch: Running, rows: Sequence[int]) -> None:
        batch.caches = [caches.keep(cache, rows) for cache in batch.caches]
        batch.histories = [batch.histories[row] for row in rows]

    def begin_together(self, *prompts: Sequence[int]) -> list[Running]:
        """Equally long prompts fill one cache side by side and are then taken apart."""
        together = Running([() for _ in prompts], [stage.new_cache() for stage in self.stages])
        self.feed(together, *prompts)
        return [
            Running([past], [caches.row(cache, row) for cache in together.caches])
            for row, past in enumerate(together.histories)
        ]

    def extract(self, batch: Running, row: int) -> Running:
        return Running([batch.histories[row]], [caches.extract(cache, row) for cache in batch.caches])


def alone(machine: Machine) -> None:
    """A prompt in chunks, single tokens, then past every sliding window and attention chunk in both ways."""
    running = machine.start()
    for column, start, end in (
        ("chunks", 0, 3),
        ("chunks", 3, 5),
        ("decode", 5, 6),
        ("decode", 6, 7),
        ("window", 7, 16),
        ("window", 16, 17),
        ("window", 17, 18),
        ("window", 18, 21),
    ):
        machine.column = column
        machine.feed(running, PROMPT[start:end])


def batch(machine: Machine) -> None:
    """Unequal lengths; one joins, one leaves, one goes on alone."""
    machine.column = "batch"
    together = machine.merge([machine.filled(PROMPT[start:end]) for start, end in ((0, 5), (3, 15), (8, 11))])
    machine.feed(together, [PROMPT[5]], [PROMPT[15]], [OTHER[2]])
    machine.join(together, machine.filled(PROMPT[6:14]))
    machine.feed(together, [PROMPT[6]], [PROMPT[16]], [OTHER[2]], [OTHER[3]])
    machine.keep(together, [0, 2, 3])
    machine.feed(together, [PROMPT[7]], [OTHER[1]], [OTHER[2]])
    machine.feed(machine.extract(together, 2), [OTHER[5]])


def together(machine: Machine) -> None:
    """Prompts that began as one rectangle: they share a batch; one goes on with its prompt, and all share another."""
    machine.column = "together"
    parts = machine.begin_together(PROMPT[:9], PROMPT[9:18], PROMPT[3:12])
    machine.feed(machine.merge(parts), [PROMPT[9]], [OTHER[4]], [PROMPT[12]])
    machine.feed(parts[1], OTHER[:3])
    batch = machine.merge(parts)
    machine.feed(batch, [PROMPT[9]], [OTHER[4]], [PROMPT[12]])


def fork(machine: Machine) -> None:
    machine.column = "fork"
    running = machine.filled(PROMPT[:9])
    branch = machine.fork(running)
    machine.feed(branch, OTHER[:3])
    machine.feed(running, [PROMPT[9]])
    machine.feed(branch, [OTHER[3]])


def cut(machine: Machine) -> None:
    """The beginning of a sequence while nothing has left a window yet."""
    machine.column = "cut"
    running = machine.filled((*PROMPT[:2], *OTHER[:2]))
    shorter = machine.fork(running, 3)
    machine.feed(running, PROMPT[2:4])
    machine.feed(shorter, OTHER[3:5])


@dataclass(frozen=True)
class Program:
    run: Callable[[Machine], None]
    columns: tuple[str, ...]
    crosses: bool = False
    """Whether what one stage sends another is the point. The others are about the caches of each stage by itself."""


PROGRAMS = (
    Program(alone, ("chunks", "decode", "window"), crosses=True),
    Program(batch, ("batch",), crosses=True),
    Program(together, ("together",)),
    Program(fork, ("fork",)),
    Program(cut, ("cut",)),
)
COLUMNS = tuple(column for program in PROGRAMS for column in program.columns)
