"""An engine that cannot serve says so at once, whatever it is doing: no request is ever left without an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from chorus.engine.leader import Command, Submit
from chorus.engine.service import ServiceThread
from chorus.messages.engine import Request, Sampling
from chorus.messages.grammar import Grammar
from chorus.messages.proto import engine_pb2 as wire
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import EngineLost
from chorus.text.grammar.client import Constraint
from tests.support.ranks import Ranks
from tests.support.sockets import short

DEADLINE = 60.0
REQUEST = Request(id="", prompt=(1, 2, 3), max_tokens=4, sampling=Sampling(seed=1))


class Face:
    """An engine as its service sees it: takes commands only while it is ready, and answers none of them."""

    def __init__(self) -> None:
        self.ready = True
        self.taken: list[Command] = []

    def post(self, command: Command) -> bool:
        if self.ready:
            self.taken.append(command)
        return self.ready

    def describe(self) -> wire.Description:
        return wire.Description(state=wire.READY if self.ready else wire.BROKEN, detail="rank 1 is gone")

    def figures(self) -> wire.Figures:
        return wire.Figures()

    async def open_grammar(
        self, grammar: Grammar, stop_tokens: frozenset[int], answered: tuple[int, ...]
    ) -> Constraint | None:
        return None


def with_client(address: str, act: Callable[[EngineClient], Awaitable[None]]) -> None:
    async def run() -> None:
        client = EngineClient(address, connect_timeout=DEADLINE)
        try:
            async with asyncio.timeout(DEADLINE):
                await act(client)
        finally:
            await client.close()

    asyncio.run(run())


async def answer(client: EngineClient) -> None:
    async for _ in client.generate(REQUEST):
        pass


@pytest.fixture
def face() -> Face:
    return Face()


@pytest.fixture
def service(face: Face, tmp_path: Path) -> Iterator[ServiceThread]:
    thread = ServiceThread(f"unix:{short(tmp_path)}/engine.sock", face)
    thread.start(DEADLINE)
    yield thread
    thread.stop()


def until_taken(face: Face, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while sum(isinstance(command, Submit) for command in face.taken) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_to_an_engine_that_still_loads_is_answered(tmp_path: Path, tiny_model: Path) -> None:
    with Ranks(tmp_path) as ranks:
        # The second rank never comes, so the engine listens and loads for as long as we look at it.
        spec = ranks.spec(tiny_model, ranks.addresses(2))
        ranks.leader(spec)
        ranks.wait_for_log("leader", "loading: loading")

        async def act(client: EngineClient) -> None:
            with pytest.raises(EngineLost, match="loading"):
                await answer(client)
            with pytest.raises(EngineLost, match="loading"):
                await client.embed((1, 2, 3), "mean", DEADLINE)

        with_client(spec.address, act)


def test_a_request_on_an_old_session_is_answered_when_the_engine_broke_meanwhile(
    face: Face, service: ServiceThread, tmp_path: Path
) -> None:
    async def act(client: EngineClient) -> None:
        first = asyncio.create_task(answer(client))
        await asyncio.to_thread(until_taken, face, 1)
        face.ready = False
        with pytest.raises(EngineLost, match="rank 1 is gone"):
            await answer(client)
        # The session is the engine's: what else was open on it will not be answered either.
        with pytest.raises(EngineLost):
            await first

    with_client(f"unix:{short(tmp_path)}/engine.sock", act)


def test_losing_a_rank_ends_every_request_with_the_reason(face: Face, service: ServiceThread, tmp_path: Path) -> None:
    async def act(client: EngineClient) -> None:
        running = [asyncio.create_task(answer(client)) for _ in range(3)]
        embedding = asyncio.create_task(client.embed((1, 2), "mean", DEADLINE))
        await asyncio.to_thread(until_taken, face, 4)
        face.ready = False
        service.refuse("the engine lost a rank: rank 1 is gone")
        for task in (*running, embedding):
            with pytest.raises(EngineLost, match="lost a rank: rank 1"):
                await task
        # Refused before it has written anything, so that its own writing may fail first, with no reason.
        with pytest.raises(EngineLost):
            await answer(client)

    with_client(f"unix:{short(tmp_path)}/engine.sock", act)
