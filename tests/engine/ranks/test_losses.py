"""A leader whose follower freezes, hangs or fails: what it says, how soon, and of whom."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.engine.lifecycle.group import Group, form_group
from chorus.engine.ranks.followers import Follower, FollowerGroup, RankLost
from chorus.engine.ranks.patience import StepPatience
from chorus.messages.rank import Feed, Step
from chorus.platform.process.exits import EXIT_FAULT
from chorus.platform.process.losses import Cause, Loss
from chorus.platform.process.timing import WatchTimes
from tests.support.freeze import freeze
from tests.support.hanging_rank import HANGS_AT
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

DEADLINE = 60.0
NOT_BY_STEPS = 600.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner than usual, and late enough for a rank that has to wait for its turn on a busy machine."""
    times = WatchTimes(silence_seconds=6.0, tick_seconds=0.1, look_seconds=0.1)
    for name, value in times.environment().items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def leading(ranks: Ranks, model: Path, addresses: tuple[str, ...], patience: float) -> Iterator[Group]:
    with contextlib.ExitStack() as cleanup:
        spec = ranks.spec(model, addresses, step_timeout_seconds=patience)
        yield form_group(spec, lambda fraction: None, cleanup)


def run(group: Group, number: int, **feed: Any) -> None:
    """A step as far as the leader's own stage, which has no part in this."""
    step = Step(number, feeds=(Feed(1, (number,), **{"begins": number == 1, "partial": True, **feed}),))
    group.followers.send(step)
    group.followers.receive(step)


def test_a_frozen_follower_is_seen_by_its_silence_alone(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        process = ranks.follower(1, addresses[1])
        with leading(ranks, model, addresses, NOT_BY_STEPS) as group:
            run(group, 1)
            freeze(psutil.Process(process.pid))
            with pytest.raises(RankLost, match=f"rank 1 at {addresses[1]}: no sign of life for"):
                run(group, 2)
            (follower,) = group.followers.followers
            assert follower.loss
            assert follower.loss.cause is Cause.OUTSIDE
            process.kill()


def test_a_follower_that_hangs_and_ticks_is_blamed_and_leaves(model: Path, tmp_path: Path) -> None:
    """Rank 2, which computes first, hangs; rank 1 waits for what it would send."""
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(3)
        innocent = ranks.follower(1, addresses[1])
        process = ranks.follower(2, addresses[2], module="tests.support.hanging_rank")
        with leading(ranks, model, addresses, NOT_BY_STEPS) as group:
            for number in range(1, HANGS_AT + 1):
                run(group, number)
            # From here on nobody computes anything: before, ranks may take any time to compile what they need.
            assert isinstance(group.followers, FollowerGroup)
            group.followers._patience = StepPatience(3.0)
            with pytest.raises(RankLost, match=rf"rank 2 at \S+ hangs: .* finished step {HANGS_AT - 1}, the last"):
                run(group, HANGS_AT + 1)
            first, second = group.followers.followers
            assert first.loss is None
            assert second.loss
            assert second.loss.cause is Cause.FAULT
            assert process.wait(DEADLINE) == EXIT_FAULT
            assert "rank 2 hangs; leaving from here:" in ranks.log("rank2")
        # Rank 1 was waiting for what rank 2 would have sent: it is there for the next leader at once.
        with leading(ranks, model, addresses[:2], NOT_BY_STEPS) as group:
            run(group, 1)
            assert innocent.poll() is None


def test_a_step_that_fails_is_a_fault_of_the_follower(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1])
        with leading(ranks, model, addresses, NOT_BY_STEPS) as group:
            with pytest.raises(RankLost, match=r"rank 1 failed at step 1: .*not known here"):
                run(group, 1, begins=False)
            (follower,) = group.followers.followers
            assert follower.loss
            assert follower.loss.cause is Cause.FAULT


@dataclass
class Said:
    """A follower as its group sees it."""

    rank: int
    heard_at: float
    finished_step: int = 0
    loss: Loss | None = None

    name = "rank 1"

    def start(self, on_loss: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


class Side:
    stages = depth = 1
    lookahead = False

    def __init__(self) -> None:
        self.abandoned = threading.Event()

    def abandon(self, reason: str) -> None:
        self.abandoned.set()

    def close(self) -> None:
        pass


def test_no_follower_is_blamed_for_a_step_that_all_of_them_finished() -> None:
    follower, side = Said(1, heard_at=float("inf"), finished_step=7), Side()
    group = FollowerGroup([as_any(follower)], as_any(side), StepPatience(0.1))
    with group.waiting(Step(7)):
        assert side.abandoned.wait(DEADLINE)
    with pytest.raises(RankLost, match=r"every other rank finished step 7, and rank 0 waited \d+ s for its end"):
        group.check()
    assert follower.loss is None
    group.close()


def test_the_first_word_of_a_loss_counts() -> None:
    follower = Follower(1, "unix:/nowhere")
    first, later = Loss(Cause.FAULT, "it hangs"), Loss(Cause.OUTSIDE, "it is gone")
    follower.lose(first)
    follower.lose(later)
    assert follower.loss == first
    follower.close()


def as_any(value: object) -> Any:
    return value
