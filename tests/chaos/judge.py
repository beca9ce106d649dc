"""`python -m tests.chaos.judge MODEL FOLDER…`: every answer that front ends noted, looked at by the plain model.

A program of its own, so that the one that counts seconds neither loads MLX nor computes. Prints one line for each
request that is not as the model would have answered it, as JSON: its folder, its id and what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 1800.0

Faults = dict[tuple[str, str], str]
"""By folder and request."""


def judge(model: Path, folders: Sequence[Path]) -> tuple[int, Faults]:
    """How many answers were looked at, and what is wrong with which."""
    command = [sys.executable, "-m", "tests.chaos.judge", str(model), *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"the judge failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    looked, *lines = done.stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    return int(looked), {(entry["folder"], entry["id"]): entry["fault"] for entry in entries}


def main() -> None:
    from tests.soak_cache import prepared

    prepared.prepare(os.cpu_count() or 1)
    from chorus.messages.engine import Finish
    from tests.chaos.noted import Noted, read
    from tests.support.teacher import Answer, Teacher

    teacher = Teacher.of_folder(Path(sys.argv[1]))
    noted: list[tuple[str, Noted]] = [(folder, one) for folder in sys.argv[2:] for one in read(Path(folder))]
    # Also what a front end got before it was lost: it must be right as far as it goes.
    answers = [
        Answer(one.request, tuple(one.tokens), one.finish or Finish.CANCELLED, tuple(one.logprobs)) for _, one in noted
    ]
    print(len(answers))
    for (folder, one), fault in zip(noted, teacher.faults(answers), strict=True):
        if fault:
            print(json.dumps({"folder": folder, "id": one.id, "fault": fault}))


if __name__ == "__main__":
    main()
