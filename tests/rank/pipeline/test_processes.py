"""Architectures of every kind over real processes: three ranks must say exactly what one says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chorus.config.engine import EngineSpec
from chorus.engine.group import form_group
from chorus.engine.leader import Leader
from chorus.engine.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Progress, Request, Sampling
from chorus.rank.load import stored_layers
from chorus.rank.runner import Runner
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

KINDS = {
    "dense": "qwen3",
    "sliding window": "olmo3",
    "experts": "qwen3_moe",
    "state space": "mamba2",
    "hybrid": "qwen3_next",
    "tuples between layers": "gemma3n",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, tuple[str, ...]]]:
    """Two followers that load one model after the other; the leader lives in the test."""
    folder = tmp_path_factory.mktemp("ranks")
    with Ranks(folder) as started:
        addresses = started.addresses(3)
        for rank in (1, 2):
            started.follower(rank, addresses[rank])
        yield started, addresses


def requests() -> list[Request]:
    random = Random(3)
    return [
        Request(
            f"1:{i}",
            tuple(random.randrange(3, 250) for _ in range(size)),
            6,
            sampling=Sampling(temperature=i % 2, seed=i),
        )
        for i, size in enumerate((3, 40, 9, 21, 14))
    ]


def generate(spec: EngineSpec, together: bool) -> dict[str, list[int]]:
    """The tokens of every request, one after the other or all at once with one leaving in the middle."""
    tokens: dict[str, list[int]] = {}

    def publish(news: list[Progress]) -> None:
        for progress in news:
            assert not progress.error
            tokens.setdefault(progress.id, []).extend(progress.tokens)

    with contextlib.ExitStack() as cleanup:
        group = form_group(spec, lambda fraction: None, cleanup)
        limits = SchedulerLimits(
            context=256, prefill_chunk=16, lookahead=group.lookahead, max_batch=8 if group.batches else 1
        )
        leader = Leader(Runner(group.shard.stage), Scheduler(limits), publish, group.followers)
        for request in requests():
            assert leader.scheduler.submit(request) is None
            while not together and not leader.idle:
                leader.turn()
        turns = 0
        while not leader.idle:
            leader.turn()
            turns += 1
            if turns == 8:
                leader.scheduler.cancel("1:3")
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_three_processes_say_what_one_says(kind: str, ranks: tuple[Ranks, tuple[str, ...]], tmp_path: Path) -> None:
    started, addresses = ranks
    model = write_tiny_model(tmp_path / "model", KINDS[kind])
    one = started.spec(model, ())
    layers = stored_layers(model)
    three = started.spec(model, addresses, split=(layers - 3, 2, 1))
    assert generate(three, together=False) == generate(one, together=False)
    batched, reference = generate(three, together=True), generate(one, together=True)
    for tokens in (batched, reference):
        tokens.pop("1:3", None)  # how far a cancelled one came is a matter of timing
    assert batched == reference
