"""How soon a conversation goes on after a restart, when each rank has its part of it on disk."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases.prefix import TURN, Served, ask, conversation
from benchmarks.load import Answer
from benchmarks.models import AGENT_TINY, FLOAT32_SUFFIX, HYBRID, HYBRID_TINY, SMOLLM2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

MOST_ROUNDS = 3
RANKS = (1, 2)
COLD, STORED = "nothing on disk", "stored before a restart"
BOUND = 0.3
PROMPT = 1500
WRITE_SECONDS = 120.0
SETTLED_SECONDS = 3.0
"""Longer than an engine waits before it writes what nobody uses, and the list of it."""


def measure(run: Run) -> list[Goal]:
    names = (AGENT_TINY, HYBRID_TINY) if run.options.quick else (SMOLLM2 + FLOAT32_SUFFIX, HYBRID)
    length = 200 if run.options.quick else PROMPT
    run.notes.append(
        f"a conversation of {length:,} tokens, its next turn of {TURN}; two freshly started servers a round"
    )
    served = [Served(name, ranks) for name in names for ranks in RANKS]
    for each in served:
        run.say(each.measure)
        with tempfile.TemporaryDirectory(prefix="chorus-benchmark-disk-") as folder:
            _measure_one(run, each, Path(folder), length)
    return [Goal(each.measure, STORED, "<=", BOUND, against=COLD) for each in served]


def _measure_one(run: Run, served: Served, folder: Path, length: int) -> None:
    """A conversation for each round is stored by one server; each round goes on with it on one that has the disk, and
    on one that has none.
    """
    model = model_folder(served.name)
    prompts = Prompts(model, run.options.seed)
    on_disk = {"CHORUS_CACHE__DISK": "8GB", "CHORUS_CACHE__DISK_FOLDER": str(folder)}
    rounds = min(run.options.rounds, MOST_ROUNDS)

    def serve(environment: dict[str, str]) -> HttpServer:
        options = ("--threads", "1", "--dtype", "float32", "--ranks", str(served.ranks))
        return chorus(model, *options, environment=environment)

    def first_answer(environment: dict[str, str], messages: list[dict[str, Any]]) -> Answer:
        with serve(environment) as server:
            # First calls load, compile and allocate.
            ask(server, conversation(prompts, length))
            return ask(server, messages)

    with serve(on_disk) as server:
        known = [_told(server, prompts, length) for _ in range(rounds)]
        _wait_until_written(server)
    cold, stored = iter(known), iter(known)

    def measure_cold() -> None:
        run.samples.add(served.measure, "s", COLD, first_answer({}, next(cold)).total_seconds)

    def measure_stored() -> None:
        answer = first_answer(on_disk, next(stored))
        if answer.cached_tokens < length // 2:
            raise ServerFailed(f"after a restart only {answer.cached_tokens} tokens were found on disk")
        run.samples.add(served.measure, "s", STORED, answer.total_seconds)

    run.interleave(measure_cold, measure_stored, most_rounds=MOST_ROUNDS)


def _told(server: HttpServer, prompts: Prompts, length: int) -> list[dict[str, Any]]:
    """A conversation that was answered, and its next turn."""
    asked = conversation(prompts, length)
    answered = {"role": "assistant", "content": ask(server, asked).text}
    return [*asked, answered, {"role": "user", "content": prompts.of(TURN)}]


def _wait_until_written(server: HttpServer) -> None:
    """Until something is on disk, and no more comes."""
    deadline = time.monotonic() + WRITE_SECONDS
    last = 0
    while time.monotonic() < deadline:
        time.sleep(SETTLED_SECONDS)
        now = server.get("/health")["engine"]["cache"]["disk_bytes"]
        if now and now == last:
            return
        last = now
    raise ServerFailed(f"{server.name} does not settle {WRITE_SECONDS:g} s after its last answer")


BENCHMARK = Benchmark("disk", "a conversation goes on after a restart, from each rank's disk", measure)
