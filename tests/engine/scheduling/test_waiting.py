"""Who waits begins in turn, and a long queue costs a step no more than a short one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from types import FrameType

import pytest

from chorus.engine.prefix.index import PrefixIndex
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.engine.scheduling.sequences import Sequence
from chorus.engine.scheduling.waiting import Waiting
from chorus.messages.engine import Request
from chorus.messages.rank import Keeping


def test_whoever_waits_has_its_turn_by_its_owner_and_its_age() -> None:
    random = Random(7)
    waiting, held, away = Waiting(), set[Sequence](), list[Sequence]()
    for number in range(1, 400):
        if held and random.random() < 0.4:
            gone = random.choice(sorted(held, key=lambda sequence: sequence.number))
            waiting.remove(gone)
            held.remove(gone)
            away.append(gone)
        back = away and random.random() < 0.3
        request = Request(str(number), (1,), 1, owner=random.choice("abcd"), resumed=random.random() < 0.1)
        sequence = away.pop(random.randrange(len(away))) if back else Sequence(number, request, 0.0)
        waiting.add(sequence)
        held.add(sequence)
        served = Counter({"a": random.randrange(3), "b": random.randrange(2), "e": 1})
        turns = sorted(held, key=lambda s: (not s.request.resumed, served[s.request.owner], s.number))
        assert list(waiting.in_turn(served)) == turns
        assert set(waiting) == held
        assert len(waiting) == len(held)
        assert sequence in waiting


OWNERS: dict[str, Callable[[int], str]] = {
    "one owner": lambda number: "",
    "an owner each": str,
    "some owners, one of them busy": lambda number: "busy" if number % 10 else str(number),
}


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("alike", [False, True], ids=["each its own prompt", "all begin alike"])
def test_ten_thousand_who_wait_cost_a_step_no_more_than_a_hundred(owners: str, alike: bool) -> None:
    few, many = (calls(count, OWNERS[owners], alike) for count in (100, 10_000))
    assert many < 1.2 * few


def calls(waiting: int, owner: Callable[[int], str], alike: bool) -> int:
    """Everything that Python calls while some requests begin, run and end, others are cancelled, and so many wait."""
    limits = SchedulerLimits(context=1000, max_batch=4, max_queue=20_000, prefill_chunk=100)
    scheduler = Scheduler(limits, prefixes=PrefixIndex(Keeping(anywhere=True)))
    for number in range(waiting):
        prompt = (1,) * 80 if alike else (number + 2, 5, 6)
        assert scheduler.submit(Request(str(number), (*prompt, 3, number + 2), 3, owner=owner(number))) is None
    counted = 0

    def count(frame: FrameType, event: str, what: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for turn in range(40):
            step = scheduler.next_step()
            assert step
            scheduler.finish(step, {feed.sequence: 5 for feed in step.feeds if not feed.partial})
            if turn % 8 == 7:
                assert scheduler.cancel(str(waiting - turn))
    finally:
        sys.setprofile(None)
    return counted
