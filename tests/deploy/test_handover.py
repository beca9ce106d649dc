"""One front end takes over from another: who serves, who finishes, who is ended, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.config.front_end import FINISH
from chorus.config.sections import Limits
from chorus.deploy.handover import CannotRestart, FrontEnd, Handover
from chorus.deploy.supervisor import Program
from chorus.platform.process.exits import EXIT_CANNOT_START
from chorus.platform.process.lifeline import Lifeline

DEADLINE = 60.0

# Serves; ends on SIGTERM at once, on FINISH when there is a file `finished`. One that finds the file `broken` does not
# start, one that finds `held` does so once that is gone, one that finds `stuck` does not end on SIGTERM.
STAND_IN = f"""
import os, signal, sys, time
from chorus.platform.process import beats
folder = sys.argv[1] + "/"
if os.path.exists(folder + "broken"):
    sys.exit({EXIT_CANNOT_START})
told = []
signal.signal({int(FINISH)}, lambda *_: told.append(1))
if os.path.exists(folder + "stuck"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
beats.begin()
while os.path.exists(folder + "held"):
    time.sleep(0.01)
beats.enter(beats.Phase.SERVING)
while not (told and os.path.exists(folder + "finished")):
    time.sleep(0.01)
"""

Use = Callable[[FrontEnd, Path], Coroutine[Any, Any, None]]


def started_in(folder: Path) -> list[psutil.Process]:
    """Other tests of this process may have children of their own."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            found += [child] if str(folder) in child.cmdline() else []
    return found


def using(folder: Path, use: Use, **limits: float) -> None:
    async def run() -> None:
        lifeline = Lifeline()
        (folder / "reason").write_text("there is no tokenizer")
        program = Program(
            "front end",
            [sys.executable, "-c", textwrap.dedent(STAND_IN), str(folder)],
            failure_file=folder / "reason",
        )
        front_end = FrontEnd(program, lifeline, Limits(**{"shutdown_grace_seconds": 1, **limits}))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(DEADLINE):
                await front_end.start()
                await until(lambda: front_end.serves)
                await use(front_end, folder)
        finally:
            await front_end.stop()
            lifeline.cut()
        assert not started_in(folder)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not psutil.pid_exists(pid)


@contextlib.asynccontextmanager
async def waiting_for_the_end(front_end: FrontEnd) -> AsyncIterator[asyncio.Task[tuple[str, int]]]:
    """As its supervisor does all the time."""
    task = asyncio.create_task(front_end.ended())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def refused(front_end: FrontEnd) -> str:
    with pytest.raises(CannotRestart) as error:
        await front_end.restart()
    return str(error.value)


def test_the_next_one_serves_before_the_old_one_finishes_and_its_end_is_no_loss(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        async with waiting_for_the_end(front_end) as ended:
            first = await front_end.restart()
            assert front_end.serves
            assert psutil.pid_exists(first.finishing_pid)
            assert f"process {first.finishing_pid}) still finishes" in await refused(front_end)
            (folder / "finished").touch()
            await until(gone(first.finishing_pid))
            await until(lambda: front_end._finishing is None)
            second = await front_end.restart()
            assert second.finishing_pid == first.pid
            await until(gone(first.pid))
            assert not ended.done()
            os.kill(second.pid, signal.SIGKILL)
            assert await ended == ("front end", -signal.SIGKILL)

    using(tmp_path, use)


def test_one_that_is_lost_while_another_finishes_is_started_again_beside_it(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        done = await front_end.restart()
        os.kill(done.pid, signal.SIGKILL)
        assert await front_end.ended() == ("front end", -signal.SIGKILL)
        await front_end.start()
        await until(lambda: front_end.serves)
        assert psutil.pid_exists(done.finishing_pid)

    using(tmp_path, use)


def test_one_that_is_lost_while_the_next_starts_is_replaced_by_that(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        async with waiting_for_the_end(front_end) as ended:
            (folder / "held").touch()
            asked = asyncio.create_task(front_end.restart())
            await until(lambda: len(started_in(folder)) == 2)
            assert front_end._current is not None
            os.kill(front_end._current.pid, signal.SIGKILL)
            await until(front_end._current.end.done)
            (folder / "held").unlink()
            done: Handover = await asked
            assert front_end.serves
            assert not ended.done()
            os.kill(done.pid, signal.SIGKILL)
            assert (await ended)[1] == -signal.SIGKILL

    using(tmp_path, use)


def test_a_next_one_that_cannot_start_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        (folder / "broken").touch()
        assert "there is no tokenizer" in await refused(front_end)
        assert front_end.serves
        (folder / "broken").unlink()
        assert (await front_end.restart()).pid

    using(tmp_path, use)


def test_only_one_is_started_at_a_time_and_none_while_none_serves(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        asked = asyncio.create_task(front_end.restart())
        await asyncio.sleep(0)
        assert "already" in await refused(front_end)
        done = await asked
        (folder / "finished").touch()
        await until(lambda: front_end._finishing is None)
        os.kill(done.pid, signal.SIGKILL)
        await front_end.ended()
        assert "does not serve" in await refused(front_end)

    using(tmp_path, use)


def test_one_that_never_finishes_is_ended(tmp_path: Path) -> None:
    (tmp_path / "stuck").touch()

    async def use(front_end: FrontEnd, folder: Path) -> None:
        (folder / "stuck").unlink()  # for the next one
        done = await front_end.restart()
        await until(gone(done.finishing_pid))
        assert front_end.serves

    using(tmp_path, use, shutdown_grace_seconds=0, request_timeout_seconds=0.1)


def test_one_that_stands_still_while_it_finishes_is_killed(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        done = await front_end.restart()
        os.kill(done.finishing_pid, signal.SIGSTOP)
        await until(gone(done.finishing_pid))
        assert front_end.serves

    using(tmp_path, use)


def test_a_stop_ends_all_of_them_also_one_that_starts(tmp_path: Path) -> None:
    async def use(front_end: FrontEnd, folder: Path) -> None:
        await front_end.restart()
        (folder / "finished").touch()
        await until(lambda: front_end._finishing is None)
        (folder / "held").touch()  # else it may serve, and the other one be gone, before anybody has seen two
        asked = asyncio.create_task(front_end.restart())
        await until(lambda: len(started_in(folder)) == 2)
        await front_end.stop()
        with pytest.raises(asyncio.CancelledError):
            await asked

    using(tmp_path, use)
