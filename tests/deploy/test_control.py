"""What commands ask of a server on this machine, and how they find it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from chorus.cli.own_server import find_own
from chorus.cluster.servers import Server, own_servers
from chorus.deploy.control import Control, NotControlled, ask, log
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import CannotRestart, FrontEnd, Handover
from chorus.messages.proto import control_pb2 as wire
from chorus.messages.proto.control_pb2_grpc import ControlStub
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.storage.paths import state_dir
from tests.support.sockets import short

DEADLINE = 30.0


class StandIn:
    """A front end that restarts as it is told."""

    def __init__(self, outcome: Handover | Exception) -> None:
        self.outcome = outcome
        self.asked = 0

    async def restart(self) -> Handover:
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    monkeypatch.setenv("CHORUS_STATE", str(short(tmp_path)))
    made = Lifeline()
    yield made
    made.cut()


def controlled(lifeline: Lifeline, front_end: StandIn, port: int = 8100, **more: Any) -> Control:
    server = Server(str(lifeline.path.parent), f"http://127.0.0.1:{port}", "tiny", str(state_dir().resolve()))
    return Control(server, cast(FrontEnd, front_end), cast(Registry, None), **more)


def found(port: int | None = None) -> Path:
    return find_own(port).control_file


def restart(stub: ControlStub) -> Any:
    return stub.RestartFrontEnd(wire.RestartFrontEndRequest(), timeout=DEADLINE)


def replan(stub: ControlStub) -> Any:
    return stub.Replan(wire.ReplanRequest(), timeout=DEADLINE)


def offering(control: Control, use: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with control.offered():
            await use()

    asyncio.run(run())


def test_a_command_finds_the_server_by_its_port_and_restarts_its_front_end(lifeline: Lifeline) -> None:
    async def use() -> None:
        server = found()
        assert server == found(8100)
        assert stat.S_IMODE(server.stat().st_mode) == 0o600
        assert stat.S_IMODE(server.parent.stat().st_mode) == 0o700
        done = await ask(server, restart)
        assert (done.pid, done.finishing_pid) == (12, 11)

    offering(controlled(lifeline, StandIn(Handover(12, 11))), use)


def test_a_refusal_is_told_in_the_servers_words(lifeline: Lifeline) -> None:
    async def use() -> None:
        with pytest.raises(NotControlled, match="process 7 still finishes"):
            await ask(found(), restart)
        with pytest.raises(NotControlled, match="nothing to plan anew"):
            await ask(found(), replan)

    offering(controlled(lifeline, StandIn(CannotRestart("process 7 still finishes"))), use)


def test_a_server_over_nodes_plans_anew(lifeline: Lifeline) -> None:
    async def plan_anew() -> str:
        return "10,10 became 20"

    async def use() -> None:
        assert (await ask(found(8100), replan)).told == "10,10 became 20"

    offering(controlled(lifeline, StandIn(Handover(1, 2)), replan=plan_anew), use)


def test_a_hang_up_restarts_the_front_end_too(lifeline: Lifeline, caplog: pytest.LogCaptureFixture) -> None:
    front_end = StandIn(CannotRestart("process 7 still finishes"))
    control = controlled(lifeline, front_end)

    def told() -> list[str]:
        """Without what the event loop of another test may say when it is collected."""
        return [record.message for record in caplog.records if record.name == log.name]

    async def use() -> None:
        control.hang_up()
        while not told():
            await asyncio.sleep(0)

    offering(control, use)
    assert front_end.asked == 1
    assert told() == ["SIGHUP: process 7 still finishes"]


def test_a_server_is_found_by_its_port_for_as_long_as_it_runs(lifeline: Lifeline) -> None:
    other = Lifeline()

    async def use() -> None:
        async with controlled(other, StandIn(Handover(1, 2)), 8200).offered():
            assert found(8200).parent == other.path.parent
            assert [server.port for server in own_servers()] == [8100, 8200]
        other.cut()
        assert found().parent == lifeline.path.parent

    offering(controlled(lifeline, StandIn(Handover(1, 2))), use)


def test_what_a_server_that_was_killed_left_is_not_taken_for_one(lifeline: Lifeline) -> None:
    async def use() -> None:
        # What a killed process leaves: everything but the writer of its pipe.
        assert lifeline._writer is not None
        os.close(lifeline._writer)
        lifeline._writer = None
        assert own_servers() == []

    offering(controlled(lifeline, StandIn(Handover(1, 2))), use)
