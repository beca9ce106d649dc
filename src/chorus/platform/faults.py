"""Faults on purpose, for tests: at a named place, rank and step, a process ends, stops or fails. Nothing happens unless
a test has said so in a variable.

Each fault happens once, whatever is started again meanwhile: who is about to suffer it first makes a file for it, and
whoever finds that file goes on. So the test can also see that it happened.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from chorus.errors import InternalSignal

VARIABLE = "CHORUS_FAULTS"
"""Names the folder with the faults: `NAME.json` each, and `NAME.done` once it happened."""

FRONT_END = -1
"""Stands for a rank where there is none."""


@dataclass(frozen=True)
class Fault:
    kind: str
    """exit, kill, stop, error or memory."""
    place: str
    """As the code calls it: see where `at` is called."""
    rank: int
    step: int = 0
    """The first step at which it may happen. In a front end: the number of its request."""
    token: int | None = None
    """Only where this token is fed; such a fault happens every time."""

    def write(self, folder: Path, name: str) -> None:
        unfinished = folder / f"{name}.new"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(folder / f"{name}.json")


class Injected(InternalSignal, RuntimeError):
    """A fault that a test asked for."""


_folder = Path(told) if (told := os.environ.get(VARIABLE)) else None


def at(place: str, rank: int, step: int = 0, tokens: Iterable[int] = ()) -> None:
    """A place where something may go wrong."""
    if _folder is not None:
        _look(_folder, place, rank, step, frozenset(tokens))


def _look(folder: Path, place: str, rank: int, step: int, tokens: frozenset[int]) -> None:
    for file in sorted(folder.glob("*.json")):
        try:
            fault = Fault(**json.loads(file.read_text()))
        except FileNotFoundError:
            continue  # it has happened, and the test took it away
        if (fault.place, fault.rank) != (place, rank) or step < fault.step:
            continue
        if fault.token is not None:
            if fault.token in tokens:
                _suffer(fault)
        elif _first(file.with_suffix(".done")):
            _suffer(fault)


def _first(done: Path) -> bool:
    try:
        with done.open("x") as note:
            note.write(f"{os.getpid()} {time.time()}")
    except FileExistsError:
        return False
    return True


def _suffer(fault: Fault) -> None:
    match fault.kind:
        case "exit":
            os._exit(1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            raise Injected(f"a fault on purpose at {fault.place}")
        case "memory":
            raise MemoryError(f"no memory on purpose at {fault.place}")
        case unknown:
            raise ValueError(f"a test asked for a fault that nobody knows: {unknown}")
