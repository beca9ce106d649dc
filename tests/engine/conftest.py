from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chorus.engine.leader import Leader
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Progress
from chorus.rank.load import LoadedShard, load_shard
from chorus.rank.runner import Runner
from tests.support.tiny_model import write_tiny_model

MakeLeader = Callable[..., tuple[Leader, list[Progress]]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("engine") / "tiny", "llama", vocab_size=512)


@pytest.fixture(scope="session")
def shard(tiny_model: Path) -> LoadedShard:
    return load_shard(tiny_model, range)


@pytest.fixture
def make_leader(shard: LoadedShard) -> MakeLeader:
    def make(**limits: int) -> tuple[Leader, list[Progress]]:
        news: list[Progress] = []
        scheduler = Scheduler(SchedulerLimits(**{"context": 2048, "vocabulary": 512, **limits}))  # type: ignore[arg-type]
        return Leader(Runner(shard.stage), scheduler, news.extend), news

    return make
