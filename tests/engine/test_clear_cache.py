"""Clearing the cache: asked over the engine link, done by the leader between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chorus.engine import service
from chorus.engine.leader import ClearCache, Command, StopLeader
from chorus.engine.service import ServiceThread
from chorus.messages.grammar import Grammar
from chorus.messages.proto import engine_pb2 as wire
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import EngineLost
from chorus.text.grammar.client import Constraint
from tests.engine.conftest import MakeLeader
from tests.support.sockets import short

DEADLINE = 60.0


class Face:
    """An engine that takes commands while it is ready, and clears its cache at once where it clears it at all."""

    ready = clears = True

    def post(self, command: Command) -> bool:
        if self.ready and self.clears and isinstance(command, ClearCache):
            command.done(3, 100)
        return self.ready

    def describe(self) -> wire.Description:
        return wire.Description(detail="loading tiny")

    def figures(self) -> wire.Figures:
        return wire.Figures()

    async def open_grammar(
        self, grammar: Grammar, stop_tokens: frozenset[int], answered: tuple[int, ...]
    ) -> Constraint | None:
        return None


def with_client(face: Face, folder: Path, act: Callable[[EngineClient], Awaitable[None]]) -> None:
    address = f"unix:{short(folder)}/engine.sock"
    thread = ServiceThread(address, face)
    thread.start(DEADLINE)

    async def run() -> None:
        client = EngineClient(address)
        try:
            await act(client)
        finally:
            await client.close()

    try:
        asyncio.run(run())
    finally:
        thread.stop()


def test_who_clears_the_cache_is_told_what_was_forgotten(tmp_path: Path) -> None:
    async def act(client: EngineClient) -> None:
        assert await client.clear_cache(DEADLINE) == (3, 100)

    with_client(Face(), tmp_path, act)


def test_an_engine_that_cannot_clear_its_cache_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    face = Face()
    monkeypatch.setattr(service, "CLEAR_SECONDS", 0.01)

    async def act(client: EngineClient) -> None:
        face.clears = False
        with pytest.raises(EngineLost, match="not cleared within"):
            await client.clear_cache(DEADLINE)
        face.ready = False
        with pytest.raises(EngineLost, match="not ready: loading tiny"):
            await client.clear_cache(DEADLINE)

    with_client(face, tmp_path, act)


def test_the_leader_clears_what_its_scheduler_keeps(make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, _ = make_leader()
    monkeypatch.setattr(leader.scheduler, "clear_cache", lambda: (3, 100))
    told: list[tuple[int, int]] = []
    leader.post(ClearCache(lambda entries, size: told.append((entries, size))))
    leader.post(StopLeader("the test is over"))
    assert leader.run() == "the test is over"
    assert told == [(3, 100)]
