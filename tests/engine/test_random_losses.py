"""Ranks are lost and steps fail at any moment; whoever is not to blame for it gets the answer of a calm day."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from chorus.engine.prefix.disk import DiskIndex
from chorus.engine.prefix.index import Limits, PrefixIndex
from chorus.engine.room import UNLIMITED, RankRoom, Room
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Finish, Request, Sampling
from chorus.messages.rank import Keeping
from chorus.platform.process.losses import Cause, Loss
from tests.engine.fake_ranks import STOP, VOCABULARY, FakeRanks, Run, answer

KEEPINGS = {"plain": Keeping(anywhere=True), "states": Keeping(), "windows": Keeping(reach=40)}
TIGHT = Room((RankRoom(700, 1, 5, 7), RankRoom(1400, 2, 1, 3)))
TRIES = 3
"""How often a rank has to be lost by fault with a request before the request is: once, once more at the same token, and
once alone."""


class RunWithLosses(Run):
    """Ranks that may lose all they hold, and steps that may fail."""

    def __init__(self, scheduler: Scheduler, depth: int, disk: bool) -> None:
        super().__init__(scheduler, depth)
        if disk:
            scheduler.prefixes.disk = DiskIndex(scheduler.prefixes.keeping, ranks=1)
        self.blamed: Counter[str] = Counter()
        """By request: how often a rank was lost by its own fault while it was in a step under way."""

    def lose(self, cause: Cause) -> None:
        under_way = {number for step, _ in self._sent for number in step.sequences}
        if cause is not Cause.OUTSIDE:
            self.blamed.update(s.request.id for n in under_way if (s := self.scheduler.sequence(n)))
        old = self.scheduler.prefixes
        new = PrefixIndex(old.keeping, self.scheduler.limits.room, Limits())
        if old.disk:
            new.disk = DiskIndex(old.keeping, ranks=1)
            new.disk.read(old.disk.lines(), set(self.ranks.files))
        self._sent.clear()
        self.ranks = FakeRanks(old.keeping, files=self.ranks.files)
        self._hear(self.scheduler.start_over(new, under_way, Loss(cause, "it is gone")))

    def fail(self) -> None:
        """The oldest step under way brings nothing; those behind it come home as if nothing had happened."""
        if self._sent:
            step, _ = self._sent.pop(0)
            if len(step.sequences) == 1 and (alone := self.scheduler.sequence(step.sequences[0])):
                self.blamed[alone.request.id] += TRIES
            self._hear(self.scheduler.step_failed(step, "a step failed"))


def ask(run: Run, rng: random.Random, asked: list[Request]) -> None:
    """Something new, something that goes on from what was said, or the same once more."""
    known = [said for r in asked for said in (r.prompt, (*r.prompt, *run.answers[r.id]))]
    base = rng.choice(known)[:250] if known and rng.random() < 0.7 else (1,)
    prompt = (*base, *rng.choices(range(1, VOCABULARY), k=rng.choice([0, 0, 5, 40])))
    sampling = Sampling(seed=rng.randrange(3))
    asked.append(Request(str(len(asked)), prompt, rng.randint(1, 90), frozenset({STOP}), sampling))
    run.submit(asked[-1])


def happen(run: RunWithLosses, rng: random.Random, asked: list[Request]) -> None:
    """A rank alone has nobody to lose: its steps fail."""
    mishap = rng.choice(["lose", "fail"])
    for _ in range(100):
        match rng.choices(["ask", "turn", "leave", mishap], [3, 8, 1, 2])[0]:
            case "ask":
                for _ in range(rng.randint(1, 4)):
                    ask(run, rng, asked)
            case "turn":
                for _ in range(rng.randint(1, 8)):
                    run.turn()
            case "leave" if asked:
                run.cancel(rng.choice(asked).id)
            case "lose":
                run.lose(rng.choice(list(Cause)))
            case "fail":
                run.fail()
    run.until_idle()


@pytest.mark.parametrize("keeping", KEEPINGS.values(), ids=KEEPINGS)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_every_answer_is_that_of_a_calm_day(keeping: Keeping, seed: int) -> None:
    """Also with hardly any memory, where streams make room for each other meanwhile, and with a disk."""
    rng = random.Random(seed)
    room = TIGHT if seed % 2 else UNLIMITED
    limits = SchedulerLimits(
        context=100_000,
        room=room,
        prefill_chunk=16,
        lanes=rng.choice([1, 2]),
        max_batch=rng.choice([1, 4, 8]),
        lookahead=rng.random() < 0.7,
    )
    prefixes = PrefixIndex(keeping, room, Limits())
    run = RunWithLosses(Scheduler(limits, prefixes=prefixes), depth=rng.choice([1, 2, 4]), disk=seed % 3 == 0)
    requests: list[Request] = []
    happen(run, rng, requests)
    for asked in requests:
        got = tuple(run.answers[asked.id])
        assert got == answer(asked)[: len(got)]
        if run.ended[asked.id].finish is Finish.FAILED:
            assert run.blamed[asked.id] >= TRIES, "only who was there each time is to blame"
        else:
            assert run.right(asked)
    run.check_that_nothing_is_left()
    assert (run.scheduler.live().tokens, run.scheduler.running, run.scheduler.queued) == (0, 0, 0)


def test_whoever_was_taken_before_goes_first_however_long_the_line_is() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, max_batch=1, max_queue=1))
    run = Run(scheduler)
    for name in "ab":
        run.submit(Request(name, (1, 2, 3), 4))
        run.turn()
    assert scheduler.submit(Request("c", (1, 2, 3), 4)), "the line is full"
    whole = Request("d", (4, 5, 6), 6)
    run.submit(replace(whole, answered=answer(whole)[:2], resumed=True))
    run.until_idle()
    assert list(run.ended) == ["a", "d", "b"]
    assert run.answers["d"] == list(answer(whole))
