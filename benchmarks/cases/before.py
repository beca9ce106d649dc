"""This checkout against another one: whether a change that should change nothing made anything slower."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cases import common, overhead
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

AS_FAST = 0.97
"""Less than this is more than chance."""
NOW, BEFORE = "now", "before"
KINDS = {"1 rank": [], "2 ranks": ["--ranks", "2"]}


def measure(run: Run) -> list[Goal]:
    if not run.options.before:
        raise ServerFailed("--before names no checkout to compare with")
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    goals: list[Goal] = []
    for kind, options in KINDS.items():
        run.say(kind)
        goals += compare(run, kind, Path(run.options.before), model, prompts, options)
    return goals


def compare(run: Run, kind: str, before: Path, model: Path, prompts: Prompts, options: list[str]) -> list[Goal]:
    """The same options for both; only one of them works at a time."""
    plain = [*options, "--threads", "1", "--dtype", "float32"]
    with (
        chorus(model, *plain, name=f"{NOW}, {kind}") as ours,
        chorus(model, *plain, name=f"{BEFORE}, {kind}", checkout=before) as theirs,
    ):
        for server in (ours, theirs):
            common.warm(server, prompts, long_prompt=True)

        def both(server: HttpServer) -> None:
            common.decode(run, server, prompts)
            common.throughput(run, server, prompts)
            common.first_token(run, server, prompts)
            overhead.measure_stream(run, server, prompts)

        run.interleave(lambda: both(ours), lambda: both(theirs))
    return [
        Goal(common.DECODE, ours.name, ">=", AS_FAST, against=theirs.name),
        Goal(common.THROUGHPUT, ours.name, ">=", AS_FAST, against=theirs.name),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 1 / AS_FAST, against=theirs.name),
        Goal(overhead.COST, ours.name, "<=", 1 / AS_FAST, against=theirs.name),
    ]


BENCHMARK = Benchmark("before", "this checkout against another one (--before FOLDER), one rank and two", measure)
