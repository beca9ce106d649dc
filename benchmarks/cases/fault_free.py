"""What it costs to be able to lose a rank, while none is lost: this checkout against one from before."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

from benchmarks.cases import common
from benchmarks.load import many_streams
from benchmarks.machine import cpu_of
from benchmarks.models import SMOLLM2, stored_default
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

PAIRS = 20
"""At least, however few rounds are asked for: fewer cannot tell two percent from chance."""
STARTS = 4
"""Of both servers: two processes of the same code differ by some percent for as long as they live."""
TOKENS_FACTOR = 0.5
MOST_CPU, LEAST_SPEED = 1.02, 0.98
KINDS = {"1 rank": [], "2 ranks over grpc": ["--ranks", "2", "--transport", "grpc"]}
STREAMS = {"1 stream": 1, f"{common.STREAMS} streams": common.STREAMS}


def cost(streams: str) -> str:
    return f"CPU of all processes per token, {streams}"


def speed(streams: str) -> str:
    return f"tokens per second, {streams}"


def measure(run: Run) -> list[Goal]:
    if not run.options.before:
        raise ServerFailed("--before names no checkout to compare with")
    goals: list[Goal] = []
    for kind, options in KINDS.items():
        run.say(kind)
        goals += compare(run, kind, Path(run.options.before), options)
    return goals


def compare(run: Run, kind: str, before: Path, options: list[str]) -> list[Goal]:
    """The same options and prompts for both. Each starts first for half of the starts."""
    pairs = run.options.rounds if run.options.quick else max(PAIRS, run.options.rounds)
    starts = min(STARTS, pairs)
    names = [f"now, {kind}", f"before, {kind}"]
    for start in range(starts):
        ours = chorus(SMOLLM2, *options, "--threads", "1", name=names[0])
        theirs = chorus(SMOLLM2, *options, "--threads", "1", name=names[1], checkout=before)
        sides = {server: Prompts(stored_default(), run.options.seed + start) for server in (ours, theirs)}
        with contextlib.ExitStack() as started:
            for server in (ours, theirs) if start % 2 == 0 else (theirs, ours):
                common.warm(started.enter_context(server), sides[server])
            share = pairs // starts + (start < pairs % starts)
            run.rounds(share, *(partial(measure_all, run, server, prompts) for server, prompts in sides.items()))
    now, then = names
    return [
        goal
        for streams in STREAMS
        for goal in (
            Goal(cost(streams), now, "<=", MOST_CPU, against=then),
            Goal(speed(streams), now, ">=", LEAST_SPEED, against=then, confident=True),
        )
    ]


def measure_all(run: Run, server: HttpServer, prompts: Prompts) -> None:
    """CPU time and speed of the same tokens."""
    tokens = max(2, round(run.options.tokens * TOKENS_FACTOR))
    for streams, number in STREAMS.items():
        asked = prompts.several(number, common.SHORT_PROMPT)
        before = cpu_of(server.processes())
        batch = many_streams(server, asked, tokens)
        after = cpu_of(server.processes())
        if after.keys() != before.keys():
            raise ServerFailed(f"{server.name} has lost or started a process:\n{server.log_tail()}")
        drawn = sum(answer.completion_tokens for answer in batch.answers)
        spent = sum(after.values()) - sum(before.values())
        run.samples.add(cost(streams), "ms", server.name, 1000 * spent / drawn)
        run.samples.add(speed(streams), "tok/s", server.name, batch.rate)


BENCHMARK = Benchmark(
    "fault_free", "CPU time and speed while nothing is lost, against another checkout (--before FOLDER)", measure
)
