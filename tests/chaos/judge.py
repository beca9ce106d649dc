"""`python -m tests.chaos.judge MODEL FOLDER`: every answer that front ends noted, looked at by the plain model.

A program of its own, so that the one that counts seconds neither loads MLX nor computes. Prints how many it has looked
at, and a line for each request that is not as the model would have answered it: its id and what is wrong, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 1800.0


@dataclass(frozen=True)
class Verdict:
    looked: int
    """At so many answers."""
    faults: dict[str, str]
    """What is wrong, by request."""


def judge(model: Path, folder: Path) -> Verdict:
    command = [sys.executable, "-m", "tests.chaos.judge", str(model), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"the judge failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    looked, *lines = done.stdout.splitlines()
    return Verdict(int(looked), dict(json.loads(line) for line in lines))


def main() -> None:
    from tests.soak_cache import prepared

    prepared.prepare()
    from chorus.messages.engine import Finish
    from tests.chaos.noted import read
    from tests.support.teacher import Answer, Teacher

    model, folder = map(Path, sys.argv[1:])
    noted = read(folder)
    # Also what a front end got before it was lost: it must be right as far as it goes.
    answers = [
        Answer(one.request, tuple(one.tokens), one.finish or Finish.CANCELLED, tuple(one.logprobs)) for one in noted
    ]
    print(len(answers))
    for one, fault in zip(noted, Teacher.of_folder(model).faults(answers), strict=True):
        if fault:
            print(json.dumps([one.id, fault]))


if __name__ == "__main__":
    main()
