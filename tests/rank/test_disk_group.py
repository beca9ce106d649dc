"""Segments on the disks of two ranks, over real processes: saved by one leader, used by the next."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from chorus.config.engine import EngineSpec
from chorus.config.sections import CacheConfig
from chorus.engine.lifecycle.group import Group, form_group
from chorus.messages.load import Status
from chorus.messages.rank import Feed, Fork, Operation, Part, Restore, Save, Step, Store
from chorus.rank.runner import Runner
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

KEY, MISSING = "ab" * 16, "cd" * 16
PROMPT, REST = tuple(range(20, 50)), (7, 8, 9)


class Leading:
    def __init__(self, group: Group) -> None:
        self.group, self.runner = group, Runner(group.shard.stage, group.disk)
        (self.follower,) = group.followers.followers
        self._steps = 0

    def run(self, *operations: Operation, feed: Feed | None = None) -> list[mx.array]:
        self._steps += 1
        step = Step(self._steps, operations, (feed,) if feed else (), logits=True)
        self.group.followers.send(step)
        outputs = self.runner.run(step, None, self.group.followers.receive(step))
        mx.eval(outputs)
        return outputs

    def heard(self) -> Status:
        """What the follower says next of its disk. It answers steps only, so it is sent some without work."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self.run()
            with contextlib.suppress(queue.Empty):
                return self.follower.disk_news.get(timeout=0.05)
        raise AssertionError("the follower says nothing of its disk")


@contextlib.contextmanager
def leading(spec: EngineSpec) -> Iterator[Leading]:
    with contextlib.ExitStack() as cleanup:
        yield Leading(form_group(spec, lambda fraction: None, cleanup))


def test_what_one_leader_had_saved_the_next_one_finds_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "model", "qwen3_next")
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1])
        spec = ranks.spec(model, addresses, cache=CacheConfig(disk=1 << 30, disk_folder=tmp_path / "leader"))
        with leading(spec) as first:
            assert first.follower.loaded.disk
            assert first.follower.loaded.files == ()
            first.run(feed=Feed(1, PROMPT, begins=True))
            first.run(Store(1, 4, 0, len(PROMPT), state=True), Save(4, KEY))
            answer = first.run(feed=Feed(1, REST))[0]
            assert first.heard().saved == (KEY,)
            assert first.follower.disk_bytes > 0
            assert next((tmp_path / "cache").rglob(f"{KEY}*")).parent.parent.name == "rank1"
        with leading(spec) as second:
            assert second.follower.loaded.files == (KEY,)
            assert second.group.disk.held_keys() == [KEY]
            second.run(Restore(9, KEY), Restore(10, MISSING))
            heard = second.heard()
            assert (heard.restored, heard.failed) == ((KEY,), (MISSING,))
            again = second.run(Fork(5, (Part(9, len(PROMPT)),)), feed=Feed(5, REST))[0]
            assert mx.array_equal(again, answer).item()
