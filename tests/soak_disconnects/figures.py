"""What a server's processes hold, and what of it is more than before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.fuzz.server.watching import GROWTH_BYTES, GROWTH_RELATIVE

ROLES = {
    "chorus.cli": "supervisor",
    "chorus.api": "front end",
    "chorus.engine": "rank 0",
    "chorus.rank": "rank 1",
    "chorus.text.grammar": "grammars",
}
MORE_DESCRIPTORS = 2
MORE_THREADS = 4
"""Pools have threads that come and go."""
MORE_TASKS = 2


@dataclass(frozen=True)
class Held:
    """By one process."""

    descriptors: int
    threads: int
    memory: int
    """Bytes that its end would give back."""


@dataclass(frozen=True)
class Figures:
    processes: Mapping[str, Sequence[Held]]
    """By role."""
    tasks: int
    """Of the front end's event loop."""


def role(words: Sequence[str]) -> str:
    modules = [word for word in words if word.startswith("chorus.")]
    return next((name for module, name in ROLES.items() for word in modules if word.startswith(module)), "others")


def held(processes: Iterable[psutil.Process]) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = {}
    for process in processes:
        try:
            with process.oneshot():
                seen = Held(process.num_fds(), process.num_threads(), process.memory_full_info().uss)
                found.setdefault(role(process.cmdline()), []).append(seen)
        except psutil.Error:
            continue
    return dict(sorted(found.items()))


def one_of_each(figures: Figures) -> bool:
    """As it is where every grammar is gone and nothing is compiled."""
    return all(len(processes) == 1 for processes in figures.processes.values())


def leaks(before: Figures, after: Figures) -> list[str]:
    """What there is more of than at rest before; memory is judged apart, since it needs time to fill up."""
    found = []
    for name in before.processes.keys() | after.processes.keys():
        was, now = before.processes.get(name, ()), after.processes.get(name, ())
        if len(was) != len(now):
            found.append(f"{name}: {len(now)} processes, before {len(was)}")
        for what, more in (("descriptors", MORE_DESCRIPTORS), ("threads", MORE_THREADS)):
            most = max((getattr(one, what) for one in was), default=0)
            if (counted := max((getattr(one, what) for one in now), default=0)) > most + more:
                found.append(f"{name}: {counted} {what}, before {most}")
    if after.tasks > before.tasks + MORE_TASKS:
        found.append(f"front end: {after.tasks} tasks, before {before.tasks}")
    return sorted(found)


def growth(before: Sequence[Figures], end: Figures) -> list[str]:
    """Which memory is more than it was at any rest before, and by more than allocators breathe.

    At any, since a process that took the place of another may not have filled its caches yet.
    """
    found = []
    for name in end.processes:
        was, now = max(memory(rest, name) for rest in before), memory(end, name)
        if now > was * (1 + GROWTH_RELATIVE) + GROWTH_BYTES:
            found.append(f"{name}: {now / 1e6:.0f} MB, before {was / 1e6:.0f} MB")
    return found


def memory(figures: Figures, name: str) -> int:
    return sum(one.memory for one in figures.processes.get(name, ()))


def told(figures: Figures) -> str:
    parts = []
    for name, processes in figures.processes.items():
        sums = [sum(getattr(one, what) for one in processes) for what in ("descriptors", "threads", "memory")]
        parts.append(f"{name} {sums[0]} descriptors, {sums[1]} threads, {sums[2] / 1e6:.0f} MB")
    return "; ".join([*parts, f"{figures.tasks} tasks"])
