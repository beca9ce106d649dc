"""Prompts are fed in chunks that streams can bear to wait for, by what chunks and decodes take on the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from chorus.engine.scheduling.chunks import LEAST, ChunkLimits, MeasuredChunks, StepCosts
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Request
from chorus.messages.rank import Feed, Step


@dataclass
class Machine:
    """Steps take time on it, one behind the other, with as many sent ahead as a leader sends."""

    floor: float
    """Seconds of a forward, however small."""
    token: float
    """Seconds of each prompt token in it."""
    row: float = 0.0
    """Seconds of each row that decodes."""
    limits: ChunkLimits = field(default_factory=ChunkLimits)
    now: float = 0.0
    held_up: Callable[[Step], float] = lambda step: 0.0
    launches_slowly: bool = False
    """To launch a step takes as long as to compute it, and only then the one before it is brought home."""

    def __post_init__(self) -> None:
        limits = SchedulerLimits(context=1_000_000, prefill_chunk=None, chunks=self.limits, max_batch=64)
        self.scheduler = Scheduler(limits, clock=lambda: self.now)
        self.steps: list[Step] = []
        self.decoded: list[float] = []
        """When each decode with the first sequence in it came home."""
        self.first_tokens: dict[int, float] = {}
        self._under_way: list[Step] = []

    def submit(self, prompt: int, new: int = 100_000) -> None:
        name = str(self.scheduler.queued + len(self.steps) + 1000 * prompt)
        assert self.scheduler.submit(Request(f"{name}-{self.now}", (1,) * prompt, new)) is None

    def turn(self) -> None:
        launched = self.scheduler.next_step()
        if launched:
            self.steps.append(launched)
            self._under_way.append(launched)
        if launched and self.launches_slowly:
            self.now += self._seconds(launched)
        if len(self._under_way) < 2 and launched:
            return
        step = self._under_way.pop(0)
        if not self.launches_slowly:
            self.now += self._seconds(step)
        if step.decode and 1 in step.sequences:
            self.decoded.append(self.now)
        for feed in step.feeds:
            if not feed.partial:
                self.first_tokens.setdefault(feed.sequence, self.now)
        self.scheduler.finish(step, {feed.sequence: 5 for feed in step.feeds if not feed.partial})

    def _seconds(self, step: Step) -> float:
        if not step.feeds:
            return 0.0
        work = self.row * len(step.feeds) if step.decode else self.token * step.tokens
        return self.floor + work + self.held_up(step)

    def until_read(self) -> None:
        while self.scheduler.queued or self.scheduler.filling or any(not step.decode for step in self._under_way):
            self.turn()

    @property
    def longest_pause(self) -> float:
        return max(after - before for before, after in zip(self.decoded, self.decoded[1:], strict=False))

    @property
    def chunks(self) -> list[int]:
        return [step.tokens for step in self.steps if step.feeds and not step.decode]


BOTH = pytest.mark.parametrize("slowly", [False, True], ids=["launched at once", "launched slowly"])


@BOTH
def test_an_h200_reads_long_prompts_fast_and_no_stream_pauses_for_long(slowly: bool) -> None:
    """As it was measured there: 17 ms for 512 tokens, 47 for 2,048, 91 for 4,096; 15 for 32 rows of 4,096 tokens."""
    machine = Machine(floor=0.007, token=0.0000206, row=0.00025, launches_slowly=slowly)
    machine.submit(100)
    for _ in range(20):
        machine.turn()
    began = machine.now
    for _ in range(32):
        machine.submit(4096)
    machine.until_read()
    read = max(machine.first_tokens.values()) - began
    assert 32 * 4096 / read > 25_000
    assert machine.longest_pause < 0.15
    # One after the other: half of them have their first token after half of the time.
    waited = sorted(at - began for number, at in machine.first_tokens.items() if number > 1)
    assert waited[15] < 0.55 * read
    assert waited[0] < 0.1 * read


@BOTH
def test_where_every_step_is_slow_streams_keep_a_quarter_of_their_speed(slowly: bool) -> None:
    machine = Machine(floor=0.2, token=0.025, limits=ChunkLimits(usual=128, most=128), launches_slowly=slowly)
    machine.scheduler.costs.note(Step(1, feeds=(Feed(1, (1,) * 16),)), 0.6)  # as a warm-up does
    machine.submit(16)
    for _ in range(20):
        machine.turn()
    before = len(machine.chunks)
    machine.submit(300)
    machine.until_read()
    assert set(machine.chunks[before + 2 : -1]) == {LEAST}
    assert machine.longest_pause < 5 * 0.2


@BOTH
@pytest.mark.parametrize("pause", [0.05, 0.1, 0.3])
def test_the_pause_is_as_long_as_was_set(pause: float, slowly: bool) -> None:
    machine = Machine(floor=0.01, token=0.0002, limits=ChunkLimits(pause_seconds=pause), launches_slowly=slowly)
    machine.submit(100)
    for _ in range(20):
        machine.turn()
    machine.submit(30_000)
    machine.until_read()
    settled = machine.chunks[4:-1]
    fits = [size for size in (64, 128, 256, 512, 1024, 2048) if 0.01 + 0.0002 * size <= pause]
    assert set(settled) == {fits[-1]}


def test_short_prompts_come_between_two_decodes_until_the_pause_is_used_up() -> None:
    machine = Machine(floor=0.01, token=0.0001)
    machine.submit(1000)
    for _ in range(20):
        machine.turn()
    before = len(machine.steps)
    for size in range(100, 150, 2):
        machine.submit(size)
    machine.until_read()
    kinds = "".join("D" if step.decode else "P" for step in machine.steps[before:] if step.feeds)
    between = [len(run) for run in kinds.split("D") if run]
    assert max(between) > 1
    assert machine.longest_pause < 0.1 + 2 * 0.01


def test_a_step_that_something_held_up_is_passed_over() -> None:
    def held_up(step: Step) -> float:
        return 3.0 if step.number in (40, 90) else 0.0

    machine = Machine(floor=0.01, token=0.0002, held_up=held_up)
    machine.submit(100)
    for _ in range(20):
        machine.turn()
    machine.submit(60_000)
    machine.until_read()
    assert machine.chunks[-10:-1] == [256] * 9


@BOTH
def test_the_size_follows_a_prompt_to_where_attention_takes_longer(slowly: bool) -> None:
    machine = Machine(floor=0.01, token=0.0002, launches_slowly=slowly)
    machine.submit(100)
    for _ in range(20):
        machine.turn()
    machine.submit(30_000)
    while machine.chunks.count(256) < 20:
        machine.turn()
    machine.token = 0.002
    for _ in range(60):
        machine.turn()
    assert machine.chunks[-5:] == [32] * 5
    machine.token = 0.0002
    for _ in range(60):
        machine.turn()
    assert machine.chunks[-5:] == [256] * 5


def test_while_nobody_decodes_chunks_are_as_large_as_pay() -> None:
    machine = Machine(floor=0.007, token=0.00002)
    machine.submit(10_000)
    machine.until_read()
    assert machine.chunks[0] == ChunkLimits().usual, "nothing is known yet"
    assert 4096 in machine.chunks
    slow = Machine(floor=0.1, token=0.01)
    slow.submit(3000)
    slow.until_read()
    assert set(slow.chunks[:-1]) == {ChunkLimits().usual}


@pytest.mark.parametrize(("left", "size"), [(1_000, 512), (4096, 1024), (30_000, 4096)])
def test_a_pipeline_cuts_prompts_so_that_all_its_stages_have_some(left: int, size: int) -> None:
    costs = StepCosts()
    costs.note(Step(1, feeds=(Feed(1, (1,) * 512),)), 0.01)
    assert MeasuredChunks(costs, ChunkLimits(stages=2)).most(left, decoding=False) == size
    assert MeasuredChunks(costs, ChunkLimits(stages=1)).most(left, decoding=False) == 4096


def test_seconds_never_fall_as_chunks_grow() -> None:
    costs = StepCosts()
    for tokens, seconds in ((600, 0.03), (70, 0.05), (2100, 9.0), (4096, 0.02)):
        costs.note(Step(1, feeds=(Feed(1, (1,) * tokens),)), seconds)
    seen = [costs.chunk(tokens) or 0.0 for tokens in range(1, 9000, 50)]
    assert seen == sorted(seen)
    assert seen[-1] < 1.0


def test_a_step_behind_one_that_ended_unseen_is_not_measured() -> None:
    costs = StepCosts()
    steps = [Step(number, feeds=(Feed(1, (1,) * 4),)) for number in range(1, 6)]
    for step in steps:
        costs.sent(step, 0.0)
    costs.home(steps[1], 5.0)
    assert costs.chunk(4) is None
    costs.home(steps[2], 6.0)
    assert costs.chunk(4) == 1.0
    costs.lose()
    costs.home(steps[4], 60.0)
    assert costs.chunk(4) == 1.0


def test_a_chunk_is_never_thought_to_cost_nothing_because_decodes_were_slow_before() -> None:
    costs = StepCosts()
    decode, chunk = (Feed(1, (1,)),), (Feed(2, (1,) * 64),)
    costs.note(Step(1, feeds=decode, decode=True), 5.0)
    steps = [Step(number, feeds=decode if number % 2 else chunk, decode=number % 2 == 1) for number in range(1, 6)]
    for step in steps:
        costs.sent(step, 0.0)
    for now, step in enumerate(steps[:-1], 1):
        costs.home(step, float(now))
    assert costs.chunk(64) == 1.0
