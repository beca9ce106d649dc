"""What it costs to count every token, and to be scraped: under 32 streams, and while the leader is dead."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx

from benchmarks.cases import common
from benchmarks.load import many_streams
from benchmarks.machine import cpu_seconds
from benchmarks.models import TINY, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus, rank_processes
from chorus.messages.engine import Request, Timing
from chorus.messages.rank import Feed, Step
from chorus.telemetry.metrics.answers import AnswerCounts, RequestMeter
from chorus.telemetry.metrics.declared import ITERATION_TOKENS
from chorus.telemetry.metrics.histogram import Histogram

STREAMS = 32
ANSWER_TOKENS = 64
ANSWERS = 500
PAUSE_SECONDS = 0.05
DEADLINE = 60.0
TOKENS_FACTOR = 8
"""Streams are to last longer than many scrapes."""

OURS = "chorus"
FRONT_END = f"CPU of counting per token in the front end, answers of {ANSWER_TOKENS}"
LEADER = "CPU of counting per token in the leader, one stream"
SCRAPE, WORST = f"a scrape under {STREAMS} streams", f"the slowest scrape under {STREAMS} streams"
DEAD = "a scrape with a dead leader"
AT_REST = "CPU of the front end per scrape"
SCRAPES = 100


def measure(run: Run) -> list[Goal]:
    model = model_folder(TINY)
    prompts = Prompts(model, run.options.seed)
    with chorus(model, "--ranks", "2", "--transport", "grpc") as server:
        common.warm(server, prompts)
        run.interleave(
            lambda: count(run),
            lambda: scrape_at_rest(run, server),
            lambda: scrape(run, server, prompts),
            lambda: scrape_dead(run, server),
        )
    return [
        Goal(FRONT_END, OURS, "<=", 20),
        Goal(LEADER, OURS, "<=", 20),
        Goal(SCRAPE, OURS, "<=", 20),
        Goal(DEAD, OURS, "<=", 20),
    ]


def count(run: Run) -> None:
    run.samples.add(FRONT_END, "µs", OURS, 1e6 * cpu_of(answers) / (ANSWERS * ANSWER_TOKENS))
    run.samples.add(LEADER, "µs", OURS, 1e6 * cpu_of(steps) / (ANSWERS * ANSWER_TOKENS))


def cpu_of(work: Callable[[], None]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def answers() -> None:
    """All that is done for answers from their beginning to their end."""
    counts, request = AnswerCounts(), Request("r", (1,) * 100, ANSWER_TOKENS)
    timing = Timing(0.1, 0.2, 0.3, 100, 0, ANSWER_TOKENS)
    for _ in range(ANSWERS):
        meter = RequestMeter(counts, [request], 1)
        answer = meter.answers[0]
        answer.prompt_read(timing)
        for token in range(ANSWER_TOKENS):
            answer.tokens(1, 0.02 * token)
        answer.end("length", ANSWER_TOKENS, timing)
        meter.close()


def steps() -> None:
    """A step of one stream brings one token, and is counted once."""
    histogram, step = Histogram(ITERATION_TOKENS), Step(1, feeds=(Feed(1, ()),), decode=True, logits=True)
    for _ in range(ANSWERS * ANSWER_TOKENS):
        if fed := len(step.feeds) if step.decode else step.tokens:
            histogram.observe(fed)


def scrape_at_rest(run: Run, server: HttpServer) -> None:
    (front_end,) = server.processes_running("chorus.api")
    with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
        before = cpu_seconds(front_end)
        for _ in range(SCRAPES):
            timed(http, server)
    run.samples.add(AT_REST, "ms", OURS, 1000 * (cpu_seconds(front_end) - before) / SCRAPES)


def scrape(run: Run, server: HttpServer, prompts: Prompts) -> None:
    tokens = run.options.tokens * TOKENS_FACTOR
    asked = [prompts.of(common.SHORT_PROMPT) for _ in range(STREAMS)]
    found: list[float] = []
    with ThreadPoolExecutor(1) as thread, httpx.Client(trust_env=False, timeout=DEADLINE) as http:
        streams = thread.submit(many_streams, server, asked, tokens)
        while not streams.done():
            seconds, text = timed(http, server)
            if value(text, "chorus_num_requests_running") == STREAMS:
                found.append(seconds)
            time.sleep(PAUSE_SECONDS)
        streams.result()
    if not found:
        raise ServerFailed(f"no scrape met {STREAMS} streams: give more --tokens")
    run.samples.add(SCRAPE, "ms", OURS, 1000 * median(found))
    run.samples.add(WORST, "ms", OURS, 1000 * max(found))


def scrape_dead(run: Run, server: HttpServer) -> None:
    """Until the next one is there, and before the next round until that one serves."""
    found: list[float] = []
    with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
        rank_processes(server)[0].send_signal(signal.SIGKILL)
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            seconds, text = timed(http, server)
            if value(text, "chorus_engine_up") == 0:
                found.append(seconds)
            elif found and value(text, "chorus_rank_memory_bytes"):
                break
            time.sleep(PAUSE_SECONDS)
        else:
            raise ServerFailed(f"no leader came back within {DEADLINE:g} s:\n{server.log_tail()}")
    run.samples.add(DEAD, "ms", OURS, 1000 * median(found))


def timed(http: httpx.Client, server: HttpServer) -> tuple[float, str]:
    begin = time.perf_counter()
    answer = http.get(f"{server.url}/metrics")
    seconds = time.perf_counter() - begin
    if answer.status_code != 200:
        raise ServerFailed(f"/metrics answers {answer.status_code}: {answer.text[:200]}")
    return seconds, answer.text


def value(text: str, name: str) -> float:
    """Of the first series; 0 where there is none."""
    lines = (line for line in text.splitlines() if line.startswith(f"{name}{{"))
    return float(next(lines, " 0").rpartition(" ")[2])


BENCHMARK = Benchmark("metrics", "what counting costs a token, and how long a scrape takes", measure)
