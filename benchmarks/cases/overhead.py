"""What the front-end process spends on each token of a stream."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.load import one_stream
from benchmarks.machine import cpu_seconds
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

# The system counts CPU time in hundredths of a second: many tokens make that small.
TOKENS_FACTOR = 4
COST = "CPU of the front end per token, 1 stream"


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    with chorus(model, "--threads", "1", "--dtype", "float32") as server:
        common.warm(server, prompts)
        run.interleave(lambda: measure_stream(run, server, prompts))
    return [Goal(COST, server.name, "<=", 1)]


def measure_stream(run: Run, server: HttpServer, prompts: Prompts) -> None:
    front_ends = server.processes_running("chorus.api")
    if len(front_ends) != 1:
        raise ServerFailed(f"expected one front-end process, found {len(front_ends)}:\n{server.log_tail()}")
    before = cpu_seconds(front_ends[0])
    answer = one_stream(server, prompts.of(common.SHORT_PROMPT), run.options.tokens * TOKENS_FACTOR)
    spent = cpu_seconds(front_ends[0]) - before
    run.samples.add(COST, "ms", server.name, 1000 * spent / answer.completion_tokens)


BENCHMARK = Benchmark("overhead", "CPU time of the API process per generated token", measure)
