"""What keeping prefixes costs when none is ever asked for again."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

from benchmarks.cases import common
from benchmarks.load import body, streams
from benchmarks.models import AGENT, AGENT_TINY, HYBRID, HYBRID_TINY, LLAMA_7B, model_folder
from benchmarks.prompts import TokenPrompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

PROMPT, LARGE_PROMPT = 256, 2048
ON, OFF = "cache", "no cache"
OFF_SETTINGS = {"CHORUS_CACHE__ENABLED": "false"}
PLAIN_BOUND, HYBRID_BOUND = 0.97, 0.95


def measure(run: Run) -> list[Goal]:
    bounds = {LLAMA_7B: PLAIN_BOUND} if run.options.large else {AGENT: PLAIN_BOUND, HYBRID: HYBRID_BOUND}
    if run.options.quick:
        bounds = {AGENT_TINY: PLAIN_BOUND, HYBRID_TINY: HYBRID_BOUND}
    goals = []
    for name, bound in bounds.items():
        run.say(name)
        _compare(run, name, model_folder(name))
        goals.append(Goal(_measure_name(name), ON, ">=", bound, against=OFF))
    length = LARGE_PROMPT if run.options.large else PROMPT
    run.notes.append(f"{common.STREAMS} streams at once, prompts of {length:,} tokens, no two with the same first one")
    return goals


def _measure_name(name: str) -> str:
    return f"throughput of unique prompts, {name}"


def _compare(run: Run, name: str, model: Path) -> None:
    """The server that starts first is some percent slower than its twin, so each starts first for half the rounds."""
    options = [] if run.options.large else ["--threads", "1", "--dtype", "float32"]
    length = LARGE_PROMPT if run.options.large else PROMPT
    prompts = TokenPrompts(model, run.options.seed)
    half = run.options.rounds // 2

    def batch(server: HttpServer, *, counted: bool = True) -> None:
        asked = [body(prompts.of(length), run.options.tokens) for _ in range(common.STREAMS)]
        done = streams(server, asked)
        if any(answer.cached_tokens for answer in done.answers):
            raise ServerFailed(f"{server.name} took tokens of a new prompt from its cache")
        if counted:
            run.samples.add(_measure_name(name), "tok/s", server.name, done.rate)

    for rounds, turned in ((run.options.rounds - half, False), (half, True)):
        with_cache = chorus(model, *options, name=ON)
        without = chorus(model, *options, name=OFF, environment=OFF_SETTINGS)
        with contextlib.ExitStack() as started:
            for server in (without, with_cache) if turned else (with_cache, without):
                batch(started.enter_context(server), counted=False)
            run.interleave(*(partial(batch, server) for server in (with_cache, without)), most_rounds=rounds)


BENCHMARK = Benchmark("unique", "eight streams of prompts that nobody sends again, with the cache and without", measure)
