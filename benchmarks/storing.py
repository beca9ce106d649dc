"""One rank's steps in process: what a step takes that also stores a row of its batch.

`steps` is the side that asks; running this module is the side that computes, one JSON line with all its figures.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import ROOT, ServerFailed

SECONDS = 900.0
CHUNK = 512
FORKED = 1000
"""The number of the sequence that begins with what was stored."""


@dataclass(frozen=True)
class Asked:
    rows: int
    tokens: int
    rounds: int
    between: int
    """Decodes between two that store."""


def steps(model: Path, asked: Asked, *, threads: int) -> list[dict[str, float]]:
    """By round: seconds of the usual steps (their median), of the one that stores, and of the one after it."""
    command = [sys.executable, "-m", "benchmarks.storing", str(model), "--threads", str(threads)]
    command += [part for name, value in vars(asked).items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"{' '.join(command)} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    for name in ("threads", "rows", "tokens", "rounds", "between"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    from chorus import platform

    platform.prepare(options.threads)
    asked = Asked(options.rows, options.tokens, options.rounds, options.between)
    print(json.dumps(list(_measure(options.model, asked))))


def _measure(model: Path, asked: Asked) -> Iterator[dict[str, float]]:
    from statistics import median

    import mlx.core as mx

    from chorus.messages.rank import Drop, Evict, Feed, Fork, Operation, Part, Step, Store
    from chorus.rank.load import load_shard
    from chorus.rank.runner import Runner

    shard = load_shard(model, range, dtype="float32")
    runner = Runner(shard.stage)
    chance = random.Random(1)
    number, length = 0, asked.tokens

    def prefill(sequence: int) -> None:
        nonlocal number
        left = asked.tokens
        while left:
            size = min(left, CHUNK)
            left -= size
            number += 1
            tokens = tuple(chance.choices(range(1000, 4000), k=size))
            feed = Feed(sequence, tokens, partial=bool(left), begins=left + size == asked.tokens)
            mx.eval(runner.run(Step(number, feeds=(feed,), logits=not left)))

    def decode(*operations: Operation) -> float:
        """Seconds until the step's tokens are there."""
        nonlocal number, length
        number, length = number + 1, length + 1
        feeds = tuple(Feed(row, (chance.randrange(1000, 4000),)) for row in range(1, asked.rows + 1))
        begin = time.perf_counter()
        mx.eval(runner.run(Step(number, operations, feeds, decode=True, logits=True)))
        return time.perf_counter() - begin

    def fork(segment: int, stored: int) -> None:
        """Fails where the segment was not really stored."""
        nonlocal number
        number += 1
        begin = Fork(FORKED, (Part(segment, stored),))
        mx.eval(runner.run(Step(number, (begin,), (Feed(FORKED, (1000,)),), logits=True)))

    for row in range(1, asked.rows + 1):
        prefill(row)
    for _ in range(asked.between):
        decode()
    for round_ in range(asked.rounds):
        usual = [decode() for _ in range(asked.between)]
        row, segment = 1 + round_ % asked.rows, 1 + round_
        stored = length
        storing = decode(Store(row, segment, 0, stored, state=True))
        after = decode()
        usual += [decode() for _ in range(asked.between)]
        fork(segment, stored)
        decode(Evict(segment), Drop(FORKED))
        yield {"usual": median(usual), "storing": storing, "after": after}


if __name__ == "__main__":
    main()
