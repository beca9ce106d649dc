"""When a process counts as dead: decided without any process, then seen with real ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from chorus.platform.process.beats import Beat, Monitor, Phase, ProcessState, Seen, Verdict, longest_silence, verdict
from chorus.platform.process.looks import LATE_SECONDS
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.process.watcher import Watched, Watcher, look

DEADLINE = 60.0
BEGIN = (
    "import os, time; from chorus.platform.process import beats; "
    "from chorus.platform.process.beats import Phase; beats.begin(); "
)
SERVE = BEGIN + "beats.enter(Phase.SERVING); "
HOLD_THE_LOCK = "import ctypes; ctypes.PyDLL(None).sleep(600)"


def judged(
    beat: Beat, quiet: float, state: ProcessState = ProcessState.RUNNING, timing: WatchTimes = DEFAULTS
) -> Verdict:
    return verdict(Seen.at(0.0, beat), state, quiet, timing)


def test_what_serves_is_silent_after_three_seconds_without_a_tick() -> None:
    serving = Beat(tick=1, phase=Phase.SERVING)
    assert judged(serving, 2.9) is Verdict.ALIVE
    assert judged(serving, 3.1) is Verdict.SILENT


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.SERVING, Phase.RECOVERING}))
def test_what_does_not_serve_yet_may_be_silent_for_as_long_as_its_phase_allows(phase: Phase) -> None:
    allowed = longest_silence(phase, DEFAULTS)
    assert judged(Beat(tick=1, phase=phase), allowed - 1) is Verdict.ALIVE
    assert judged(Beat(tick=1, phase=phase), allowed + 1) is Verdict.SILENT


def test_every_phase_but_serving_has_an_allowance_and_a_join_may_take_its_whole_deadline() -> None:
    for phase in set(Phase) - {Phase.SERVING, Phase.RECOVERING}:
        assert longest_silence(phase, DEFAULTS) >= 60 > longest_silence(Phase.SERVING, DEFAULTS)
    assert longest_silence(Phase.JOINING, DEFAULTS) > DEFAULTS.join_seconds


def test_who_starts_is_never_given_less_time_than_who_serves() -> None:
    patient = WatchTimes(silence_seconds=600)
    assert {longest_silence(phase, patient) for phase in Phase} == {600}


def test_a_stopped_process_is_dead_in_any_phase_but_not_at_the_first_moment() -> None:
    for phase in Phase:
        assert judged(Beat(tick=1, phase=phase), DEFAULTS.stopped_seconds / 2, ProcessState.STOPPED) is Verdict.ALIVE
        assert judged(Beat(tick=1, phase=phase), DEFAULTS.stopped_seconds, ProcessState.STOPPED) is Verdict.STOPPED


def test_a_loop_that_stands_still_is_dead_though_the_process_ticks() -> None:
    serving = Beat(tick=1, loop_tick=1, phase=Phase.SERVING)
    ticking = Seen.at(0.0, serving).then(Beat(tick=2, loop_tick=1, phase=Phase.SERVING), DEFAULTS.loop_silence_seconds)
    assert verdict(ticking, ProcessState.RUNNING, DEFAULTS.loop_silence_seconds, DEFAULTS) is Verdict.ALIVE
    assert verdict(ticking, ProcessState.RUNNING, DEFAULTS.loop_silence_seconds + 1, DEFAULTS) is Verdict.SILENT


def test_nothing_is_judged_where_the_watch_is_off_or_the_process_has_ended() -> None:
    serving = Beat(tick=1, phase=Phase.SERVING)
    assert judged(serving, 1e6, ProcessState.STOPPED, WatchTimes(silence_seconds=0)) is Verdict.ALIVE
    assert judged(serving, 1e6, ProcessState.GONE) is Verdict.ALIVE


def test_every_tick_begins_the_time_anew() -> None:
    seen = Seen.at(0.0, Beat(tick=1, phase=Phase.SERVING))
    for second in range(1, 100):
        seen = seen.then(Beat(tick=second, phase=Phase.SERVING), float(second))
        assert verdict(seen, ProcessState.RUNNING, second + 2.0, DEFAULTS) is Verdict.ALIVE


class Child:
    """A process of ours that does what the code says, as a watcher sees it."""

    def __init__(self, code: str, folder: Path, timing: WatchTimes = DEFAULTS) -> None:
        self.monitor = Monitor(folder)
        environment = {**psutil.Process().environ(), **self.monitor.environment(), **timing.environment()}
        self.process = subprocess.Popen([sys.executable, "-c", code], env=environment)
        self.watched = Watched("child", self.monitor, timing, self.process.pid)

    def until(self, phase: Phase) -> None:
        deadline = time.monotonic() + DEADLINE
        while self.monitor.read().phase is not phase:
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.01)

    def until_silent(self) -> None:
        """It says that it serves before it holds Python's lock: until then it goes on ticking."""
        deadline, tick, since = time.monotonic() + DEADLINE, self.monitor.read().tick, time.monotonic()
        while time.monotonic() - since < 2 * self.watched.timing.tick_seconds:
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.01)
            if (now := self.monitor.read().tick) != tick:
                tick, since = now, time.monotonic()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        self.monitor.close()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.end()


def watch_until_dead(child: Child) -> None:
    async def act() -> None:
        watcher = Watcher()
        watcher.add(child.watched)
        watching = asyncio.create_task(watcher.run())
        try:
            await asyncio.wait_for(asyncio.to_thread(child.process.wait), DEADLINE)
        finally:
            watching.cancel()

    asyncio.run(act())


def test_a_process_tells_who_it_is_and_how_far(children: list[Child], tmp_path: Path) -> None:
    code = SERVE + "beats.loaded(5, 9); beats.holds(11); beats.finished(7); beats.enter(Phase.WARMING); time.sleep(600)"
    children.append(child := Child(code, tmp_path))
    child.until(Phase.WARMING)
    beat = child.monitor.read()
    assert (beat.pid, beat.step, beat.held_bytes) == (child.process.pid, 7, 11)
    assert (beat.loaded_bytes, beat.total_bytes) == (5, 9)


def test_a_process_that_holds_the_interpreter_is_killed(children: list[Child], tmp_path: Path) -> None:
    children.append(child := Child(SERVE + HOLD_THE_LOCK, tmp_path, WatchTimes(silence_seconds=1.5)))
    child.until(Phase.SERVING)
    watch_until_dead(child)
    assert child.watched.death.startswith("silent")


def test_a_stopped_process_is_killed(children: list[Child], tmp_path: Path) -> None:
    children.append(child := Child(SERVE + "time.sleep(600)", tmp_path))
    child.until(Phase.SERVING)
    psutil.Process(child.process.pid).suspend()
    watch_until_dead(child)
    assert child.watched.death.startswith("stopped")


def test_a_watcher_that_was_held_up_itself_blames_nobody(children: list[Child], tmp_path: Path) -> None:
    children.append(child := Child(SERVE + HOLD_THE_LOCK, tmp_path))
    child.until(Phase.SERVING)
    child.until_silent()
    now = time.monotonic()
    look(child.watched, now)
    look(child.watched, now + 600, late=True)
    look(child.watched, now + 600 + DEFAULTS.silence_seconds - DEFAULTS.look_seconds)
    assert not child.watched.death
    look(child.watched, now + 600 + DEFAULTS.silence_seconds + LATE_SECONDS)
    assert child.watched.death


def test_what_ends_by_itself_is_nobodys_business(children: list[Child], tmp_path: Path) -> None:
    children.append(child := Child(SERVE, tmp_path))
    child.process.wait(DEADLINE)
    now = time.monotonic()
    for later in (0, 600):
        look(child.watched, now + later)
    assert not child.watched.death


def test_a_process_ticks_as_often_as_it_was_told(children: list[Child], tmp_path: Path) -> None:
    children.append(child := Child(SERVE + "time.sleep(600)", tmp_path, WatchTimes(tick_seconds=0.01)))
    child.until(Phase.SERVING)
    deadline, ticks = time.monotonic() + DEADLINE, [child.monitor.read().tick]
    while len(ticks) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        ticks += [tick] if (tick := child.monitor.read().tick) != ticks[-1] else []
    assert min(later - earlier for earlier, later in pairwise(ticks)) / 1e9 < DEFAULTS.tick_seconds
