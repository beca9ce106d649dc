"""What goes on and what is started again when a process of a group ends, seen with small ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chorus.config.engine import EngineSpec
from chorus.deploy.programs import rank_programs
from chorus.deploy.supervisor import Counts, ProcessGroup, Program
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_LEADER_GONE, EXIT_NO_MEMORY, EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.losses import Cause, Loss
from chorus.platform.process.restarts import RestartPolicy
from chorus.platform.process.timing import WatchTimes

DEADLINE = 60.0
LEADER, *FOLLOWERS = "engine", "rank 1", "rank 2"

RUN = """
import json, os, sys, time
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.platform.process.losses import last_loss
beats.begin()
beats.delivered(int(sys.argv[2]))
while os.path.exists(sys.argv[1] + ".held"):
    time.sleep(0.02)
beats.enter(Phase.SERVING)
loss = last_loss()
unfinished = sys.argv[1] + ".new"
with open(unfinished, "w") as told:
    json.dump([os.getpid(), loss and [loss.cause, loss.told]], told)
os.rename(unfinished, sys.argv[1])
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.02)
with open(sys.argv[1] + ".end") as code:
    os._exit(int(code.read()))
"""


class Play:
    """Processes that say who they are and what they were told, and end as they are told."""

    def __init__(self, folder: Path, alone: bool, delivered: int = 0) -> None:
        self.folder = folder
        self.lifeline = Lifeline()
        names = (LEADER, *FOLLOWERS)
        programs = [
            Program(name, [sys.executable, "-c", RUN, str(folder / name), str(delivered)], alone=alone)
            for name in names
        ]
        timing = WatchTimes(look_seconds=0.05)
        self.group = ProcessGroup("ranks", programs, self.lifeline, 10.0, timing)

    async def start(self) -> dict[str, int]:
        """Everybody's process id, once all were seen to serve."""
        await self.group.start()
        await until(lambda: all((self.folder / name).exists() for name in (LEADER, *FOLLOWERS)))
        await until(lambda: all(member.served_at for member in self.group._running.values()))
        return {name: json.loads((self.folder / name).read_text())[0] for name in (LEADER, *FOLLOWERS)}

    def told(self, name: str) -> Loss | None:
        _, loss = json.loads((self.folder / name).read_text())
        return Loss(Cause(loss[0]), loss[1]) if loss else None

    def end(self, name: str, code: int) -> None:
        (self.folder / f"{name}.end.new").write_text(str(code))
        (self.folder / f"{name}.end.new").rename(self.folder / f"{name}.end")

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """What is started meanwhile does not serve before this is over."""
        file = self.folder / f"{name}.held"
        file.touch()
        yield
        file.unlink()

    def has_ended(self, name: str) -> bool:
        return self.group._running[name].process.returncode is not None

    async def ended(self) -> tuple[str, int]:
        """Who ended, and how; what the present processes have written is no more, but of those that go on."""
        name, code = await self.group.ended()
        for each in (LEADER, *FOLLOWERS):
            if each not in self.group._running:
                (self.folder / each).unlink(missing_ok=True)
                (self.folder / f"{each}.end").unlink(missing_ok=True)
        return name, code


async def until(check: Callable[[], bool]) -> None:
    while not check():
        await asyncio.sleep(0.02)


def act(play: Play, doing: Callable[[Play], Awaitable[None]]) -> None:
    async def bounded() -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                await doing(play)
        finally:
            await play.group.stop()
            play.lifeline.cut()

    asyncio.run(bounded())


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("lost", [LEADER, FOLLOWERS[0]])
def test_a_process_that_lives_alone_is_replaced_alone_and_told_how_the_one_before_ended(
    tmp_path: Path, lost: str
) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        assert play.told(lost) is None
        os.kill(before[lost], signal.SIGKILL)
        assert await play.ended() == (lost, -signal.SIGKILL)
        after = await play.start()
        assert changed(before, after) == {lost}
        assert play.told(lost) == Loss(Cause.OUTSIDE, f"{lost} ended with SIGKILL")

    act(Play(tmp_path, alone=True), doing)


def test_a_second_end_meanwhile_is_not_missed(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        for name in FOLLOWERS:
            os.kill(before[name], signal.SIGSEGV)
        ended = {await play.ended()}
        await play.group.start()
        ended.add(await play.ended())
        assert ended == {(name, -signal.SIGSEGV) for name in FOLLOWERS}
        assert changed(before, await play.start()) == set(FOLLOWERS)

    act(Play(tmp_path, alone=True), doing)


def test_whoever_is_lost_first_is_named_though_the_system_tells_of_another_before(tmp_path: Path) -> None:
    """A leader ends as soon as a rank of its collective is gone; which of the two ends is seen first, nobody knows."""

    async def doing(play: Play) -> None:
        before = await play.start()
        play.end(LEADER, EXIT_RANK_LOST)
        await until(lambda: play.group._running[LEADER].process.returncode is not None)
        os.kill(before[FOLLOWERS[0]], signal.SIGKILL)
        await play.ended()
        await play.start()
        for name in before:
            assert play.told(name) == Loss(Cause.OUTSIDE, f"{FOLLOWERS[0]} ended with SIGKILL")

    act(Play(tmp_path, alone=False), doing)


def test_a_leader_that_calls_its_group_broken_takes_all_along(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        play.end(LEADER, EXIT_RANK_LOST)
        assert await play.ended() == (LEADER, EXIT_RANK_LOST)
        assert not play.group.goes_on
        assert changed(before, await play.start()) == {LEADER, *FOLLOWERS}

    act(Play(tmp_path, alone=True), doing)


def test_a_leader_hears_of_the_rank_for_which_it_called_its_group_broken(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        play.end(FOLLOWERS[0], EXIT_NO_MEMORY)
        await play.ended()
        # If all served again before the leader ends, that would be another story.
        with play.held(FOLLOWERS[0]):
            await play.group.start()
            play.end(LEADER, EXIT_RANK_LOST)
            assert await play.ended() == (LEADER, EXIT_RANK_LOST)
        assert changed(before, await play.start()) == {LEADER, *FOLLOWERS}
        loss = play.told(LEADER)
        assert loss is not None
        assert loss.cause is Cause.MEMORY

    act(Play(tmp_path, alone=True), doing)


def test_processes_that_live_together_end_together_and_all_are_told_what_went_wrong_first(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        os.kill(before[FOLLOWERS[1]], signal.SIGSEGV)
        await until(lambda: play.has_ended(FOLLOWERS[1]))
        play.end(FOLLOWERS[0], EXIT_LEADER_GONE)
        await until(lambda: play.has_ended(FOLLOWERS[0]))
        await play.ended()
        assert not play.group.goes_on
        assert changed(before, await play.start()) == {LEADER, *FOLLOWERS}
        fault = Loss(Cause.FAULT, f"{FOLLOWERS[1]} ended with SIGSEGV")
        assert {play.told(name) for name in before} == {fault}

    act(Play(tmp_path, alone=False), doing)


def test_who_was_killed_because_it_stood_still_was_lost_from_outside(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        before = await play.start()
        os.kill(before[FOLLOWERS[0]], signal.SIGSTOP)
        assert await play.ended() == (FOLLOWERS[0], -signal.SIGKILL)
        assert changed(before, await play.start()) == {FOLLOWERS[0]}
        loss = play.told(FOLLOWERS[0])
        assert loss is not None
        assert (loss.cause, loss.told[:19]) == (Cause.OUTSIDE, "rank 1 was stopped:")

    act(Play(tmp_path, alone=True), doing)


def test_what_was_lost_again_before_all_served_keeps_the_graver_reason(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        await play.start()
        play.end(LEADER, EXIT_NO_MEMORY)
        await play.ended()
        play.end(LEADER, EXIT_CANNOT_START)
        await play.group.start()
        assert await play.ended() == (LEADER, EXIT_CANNOT_START)
        await play.start()
        loss = play.told(LEADER)
        assert loss is not None
        assert loss.cause is Cause.MEMORY
        play.end(LEADER, 0)
        await play.ended()
        await play.start()
        assert play.told(LEADER) == Loss(Cause.OUTSIDE, "engine ended with exit code 0")

    act(Play(tmp_path, alone=True), doing)


def test_each_that_lives_alone_has_its_own_count_and_tokens_are_everybodys(tmp_path: Path) -> None:
    async def doing(play: Play) -> None:
        counts = Counts(play.group, RestartPolicy(settled_seconds=DEADLINE))
        pids = await play.start()
        delivered = []
        for name in (LEADER, *FOLLOWERS):
            os.kill(pids[name], signal.SIGKILL)
            name, code = await play.ended()
            life = play.group.life(0.0, name)
            delivered.append(life.delivered)
            assert counts.of(name).pause(code, 0.0, replace(life, served=1.0, loading=1.0)) == 0
            pids = await play.start()
        assert delivered == [15, 20, 25]
        # One that was never lost has run with the others.
        assert Counts(play.group, RestartPolicy()).of(FOLLOWERS[0]).pause(EXIT_CANNOT_START, 0.0) == 1

    act(Play(tmp_path, alone=True, delivered=5), doing)


@pytest.mark.parametrize(("transport", "alone"), [("grpc", True), ("ring", False)])
def test_the_transport_decides_who_lives_alone(tmp_path: Path, transport: str, alone: bool) -> None:
    addresses = ("unix:/rank0.sock", "unix:/rank1.sock")
    spec = EngineSpec(address="unix:/engine.sock", model_path=tmp_path, ranks=addresses, transport=transport)
    assert [program.alone for program in rank_programs(spec)] == [alone, alone]
