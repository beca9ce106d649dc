"""A follower is lost in the middle of streams: the leader goes on with the one that is started in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil
import pytest

from chorus.messages.engine import Progress, Request, Sampling
from chorus.messages.proto import engine_pb2 as pb
from chorus.platform.faults import VARIABLE, Fault
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import RequestFailed
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

TOKENS = 120
KILLED_AT = 15
POISON = 255
"""A token that no other request has."""


class Group:
    """A leader and two followers, each kept by the test as a supervisor would."""

    def __init__(self, ranks: Ranks, model: Path) -> None:
        self.ranks = ranks
        self.faults = Path(os.environ[VARIABLE])
        self.addresses = ranks.addresses(3)
        self.followers = {rank: ranks.follower(rank, self.addresses[rank]) for rank in (1, 2)}
        self.spec = ranks.spec(model, self.addresses, split=(3, 2, 2), max_batch=8)
        self.leader = ranks.leader(self.spec)
        ranks.wait_for_log("leader", "ready: ready")
        self.expected = [tokens for tokens, _ in asyncio.run(answers(self))]

    def forget_faults(self) -> None:
        for file in self.faults.iterdir():
            file.unlink()

    def replace(self, rank: int) -> None:
        self.followers[rank].wait(120)
        self.followers[rank] = self.ranks.follower(rank, self.addresses[rank])


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("recovery")
    model = write_tiny_model(folder / "model", "qwen3", num_hidden_layers=7, max_position_embeddings=1024)
    (folder / "faults").mkdir()
    with pytest.MonkeyPatch.context() as patch, Ranks(folder) as ranks:
        patch.setenv(VARIABLE, str(folder / "faults"))
        yield Group(ranks, model)


def requests(tokens: int = TOKENS) -> list[Request]:
    random = Random(5)
    ways = (
        Sampling(),
        Sampling(temperature=0.8, seed=4),
        Sampling(presence_penalty=0.6, frequency_penalty=0.4),
        Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=9),
    )
    return [
        Request(f"{number}", tuple(random.randrange(3, 250) for _ in range(8 + 30 * number)), tokens, sampling=way)
        for number, way in enumerate(ways)
    ]


async def collect(stream: object, after: Callable[[int], Awaitable[None]]) -> tuple[list[int], Progress]:
    tokens: list[int] = []
    async for progress in stream:  # type: ignore[attr-defined]
        tokens += progress.tokens
        last = progress
        await after(len(tokens))
    return tokens, last


async def nothing(count: int) -> None:
    pass


async def answers(group: Group, lose: Callable[[], None] = lambda: None) -> list[tuple[list[int], Progress]]:
    """All requests at a time; when one of them has so many tokens, something is lost, or what was lost is replaced."""
    client = EngineClient(group.spec.address)
    lost = False

    async def after(count: int) -> None:
        nonlocal lost
        if count >= KILLED_AT and not lost:
            lost = True
            await asyncio.to_thread(lose)

    try:
        streams = [client.generate(request) for request in requests()]
        return await asyncio.wait_for(asyncio.gather(*(collect(stream, after) for stream in streams)), 120)
    finally:
        await client.close()


async def described(group: Group) -> pb.Description:
    client = EngineClient(group.spec.address)
    try:
        return await client.describe(60)
    finally:
        await client.close()


def settled(group: Group) -> pb.Description:
    """Once it has gone on after its last loss: whoever is to blame for that hears so a moment before it is counted."""
    deadline = time.monotonic() + 60
    while (seen := asyncio.run(described(group))).state != pb.READY:
        assert time.monotonic() < deadline
    return seen


@pytest.mark.parametrize("rank", [1, 2])
def test_streams_go_on_when_a_follower_was_killed(group: Group, rank: int) -> None:
    others = {2: 1, 1: 2}[rank]
    kept = psutil.Process(group.followers[others].pid)
    before, read = settled(group), kept.io_counters().read_chars
    # At a step in the middle of all streams, when one of them has so many tokens, however many lanes they run in:
    # where the test did it, they might be over before its signal comes.
    Fault("kill", "begin", rank, before.step + 4 * KILLED_AT).write(group.faults, "killed")
    found = asyncio.run(answers(group, lambda: group.replace(rank)))
    group.forget_faults()
    assert [tokens for tokens, _ in found] == group.expected
    for request, (tokens, last) in zip(requests(), found, strict=True):
        assert last.timing
        assert last.timing.generated_tokens == len(tokens) == TOKENS
        assert last.timing.prompt_tokens == len(request.prompt)
    seen = asyncio.run(described(group))
    assert seen.state == pb.READY
    assert seen.recoveries.count == before.recoveries.count + 1
    assert seen.recoveries.streams >= 1
    assert group.leader.poll() is None
    # Whoever was not lost has its process and its weights still.
    assert group.followers[others].poll() is None
    assert kept.io_counters().read_chars - read < seen.ranks[others].weight_bytes


def test_a_follower_that_was_frozen_and_wakes_up_says_nothing_of_before(group: Group) -> None:
    """Nobody replaces it: it is taken for lost, and when it is there again it is asked to load like everybody."""
    pids = [rank.pid for rank in asyncio.run(described(group)).ranks]

    def lose() -> None:
        told = group.ranks.log("leader").count("no sign of life")
        group.followers[2].send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while group.ranks.log("leader").count("no sign of life") == told:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        group.followers[2].send_signal(signal.SIGCONT)

    assert [tokens for tokens, _ in asyncio.run(answers(group, lose))] == group.expected
    assert [rank.pid for rank in asyncio.run(described(group)).ranks] == pids


@pytest.mark.parametrize("place", [(0, "forward"), (0, "sample"), (1, "forward"), (2, "send"), (1, "answer")], ids=str)
def test_a_step_that_failed_on_one_rank_is_made_again(group: Group, place: tuple[int, str]) -> None:
    """All of them live: nobody is started again, and nobody reads weights."""
    before = settled(group)
    pids = [rank.pid for rank in before.ranks]
    # Said before anything is asked: streams may be over before one that reads them says anything.
    Fault("error", place[1], place[0], before.step + KILLED_AT).write(group.faults, "once")
    found = asyncio.run(answers(group))
    assert (group.faults / "once.done").exists()
    assert [tokens for tokens, _ in found] == group.expected
    assert [rank.pid for rank in asyncio.run(described(group)).ranks] == pids
    group.forget_faults()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_that_fails_its_rank_each_time_fails_alone(group: Group, rank: int) -> None:
    poison = Request("poison", (*range(60, 100), POISON), 20)
    Fault("error", "forward", rank, token=POISON).write(group.faults, "poison")

    async def ask() -> None:
        client = EngineClient(group.spec.address)
        try:
            with pytest.raises(RequestFailed, match=r"each time it was tried: rank .* failed"):
                await asyncio.wait_for(collect(client.generate(poison), nothing), 120)
        finally:
            await client.close()

    async def both() -> list[tuple[list[int], Progress]]:
        return (await asyncio.gather(answers(group), ask()))[0]

    assert [tokens for tokens, _ in asyncio.run(both())] == group.expected
    recoveries = settled(group).recoveries.count
    asyncio.run(ask())
    assert settled(group).recoveries.count == recoveries, "it is known by now"
    group.forget_faults()


def test_what_was_answered_before_counts_as_output(group: Group) -> None:
    async def ask(request: Request) -> tuple[list[int], Progress]:
        client = EngineClient(group.spec.address)

        try:
            return await asyncio.wait_for(collect(client.generate(request), nothing), 120)
        finally:
            await client.close()

    for request in requests(40):
        whole, _ = asyncio.run(ask(request))
        rest, last = asyncio.run(ask(replace(request, answered=tuple(whole[:25]), resumed=True)))
        assert rest == whole[25:]
        assert last.timing
        assert (last.timing.generated_tokens, last.timing.prompt_tokens) == (40, len(request.prompt))
