"""Loaded, asked, unloaded for idleness, over and over: what all processes hold is afterwards what it was before."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.many.arrivals import Ask
from tests.many.models import PROMPTS, Prepared
from tests.many.swapping import MB, answer, budget_for, group_processes, serving, settings
from tests.support.own_memory import own_memory
from tests.support.server import ChorusServer

GONE_SECONDS = 60.0
KEPT_BYTES = 50 * MB


@dataclass(frozen=True)
class Cycles:
    before: int
    """Held by all processes of the server before the first load."""
    loaded: tuple[int, ...]
    after: tuple[int, ...]
    wrong: tuple[str, ...]

    @property
    def growth(self) -> int:
        return max(self.after) - self.before

    def told(self) -> str:
        after = ", ".join(f"{each / MB:.0f}" for each in self.after)
        return f"{self.before / MB:.0f} MB before, at most {max(self.loaded) / MB:.0f} loaded, then {after}"


def run(prepared: Prepared, folder: Path, cycles: int) -> Cycles:
    # Long enough to look at what is loaded, also on a busy machine.
    tree = settings(prepared, budget_for(prepared, 2), idle_unload=2)
    name = next(iter(prepared.answers))
    loaded, after, wrong = [], [], []
    with serving(tree, folder) as server:
        until_unloaded(server)
        before = everything(server)
        for number in range(cycles):
            asked = Ask(name, PROMPTS[number % len(PROMPTS)], stream=False)
            if (text := answer(server, asked)) != prepared.answers[name][asked.prompt]:
                wrong.append(text)
            loaded.append(everything(server))
            until_unloaded(server)
            after.append(left(server, before))
    return Cycles(before, tuple(loaded), tuple(after), tuple(wrong))


def everything(server: ChorusServer) -> int:
    return own_memory(server.processes())


def left(server: ChorusServer, before: int) -> int:
    """What is held once memory has been given back, or else for all the time that this may take."""
    deadline = time.monotonic() + GONE_SECONDS
    while (found := everything(server)) - before > KEPT_BYTES and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def until_unloaded(server: ChorusServer) -> None:
    """Until the processes of all groups have gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while found := group_processes(server):
        assert time.monotonic() < deadline, f"still there: {found}\n{server.log}"
        time.sleep(0.05)
