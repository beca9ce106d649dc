"""Products on packed weights: a 4-bit model of 1.1B on a CPU, this checkout against one that unpacks them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import plot
from benchmarks.cases import common
from benchmarks.load import Batch, many_streams, time_to_first_token
from benchmarks.machine import peak_resident_bytes
from benchmarks.models import LLAMA_1B_4BIT, TINY_4BIT, model_folder
from benchmarks.prompts import TokenPrompts
from benchmarks.report import Goal, Samples
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus, rank_processes

NOW, BEFORE = "now", "before"
THREADS = 2
STREAMS = (1, 4, 8, 16, 32)
PROMPT = 256
FIRST_TOKEN = f"time to first token, {PROMPT}-token prompt"
AS_FAST = 0.95
RELATIVE, FIXED_BYTES = 1.3, 250e6
WEIGHTS = "weights, as the rank counts what it holds"
RESIDENT = "resident memory of the rank"
LOADED, USED, PEAK = "after loading", "after the streams", "at most, ever"
BOUND = "resident memory / (1.3 × packed weights + 250 MB)"


def throughput(streams: int) -> str:
    return f"throughput, {streams} streams" if streams > 1 else "throughput, 1 stream"


def decode(streams: int) -> str:
    return f"decode, {streams} streams" if streams > 1 else common.DECODE


def measure(run: Run) -> list[Goal]:
    model = model_folder(TINY_4BIT if run.options.quick else LLAMA_1B_4BIT)
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    run.notes.append(f"{model.name}, one rank, {THREADS} threads, no prefix cache; its file has {stored / 1e6:.0f} MB")
    prompts = TokenPrompts(model, run.options.seed)
    # What is kept of prompts would be counted as memory, and no prompt comes back.
    options = ("--threads", str(THREADS), "--no-cache")
    ours = chorus(model, *options, name=NOW)
    theirs = chorus(model, *options, name=BEFORE, checkout=checkout(run))
    with ours, theirs:
        check_packed(ours)
        for server in (ours, theirs):
            (rank,) = server.get("/model/info")["ranks"]
            run.samples.add(WEIGHTS, "MB", server.name, rank["weight_bytes"] / 1e6)
            add_resident(run, server, LOADED)
            warm(server, prompts, STREAMS)
        run.interleave(*(partial(measure_all, run, server, prompts) for server in (ours, theirs)))
        for server in (ours, theirs):
            add_resident(run, server, USED)
            run.samples.add(RESIDENT, "MB", f"{server.name}, {PEAK}", rank_bytes(server, peak=True) / 1e6)
    figures = run.samples.figures[RESIDENT]
    for when in (LOADED, USED):
        run.samples.add(BOUND, "of the bound", when, 1e6 * figures[f"{NOW}, {when}"][0] / allowed_bytes(stored))
    return [
        Goal(common.DECODE, NOW, ">=", 6, against=BEFORE),
        Goal(throughput(8), NOW, ">=", 4, against=BEFORE),
        Goal(decode(8), NOW, ">=", 4, against=BEFORE),
        Goal(FIRST_TOKEN, NOW, "<=", 1 / AS_FAST, against=BEFORE),
        *(Goal(BOUND, when, "<=", 1) for when in (LOADED, USED)),
    ]


def checkout(run: Run) -> Path:
    if not run.options.before:
        raise ServerFailed("--before names no checkout to compare with")
    return Path(run.options.before)


def check_packed(server: HttpServer) -> None:
    """Before anybody waits for figures of something else."""
    (rank,) = server.get("/model/info")["ranks"]
    if (form := rank.get("form")) != "packed":
        raise ServerFailed(f"{server.name} multiplies weights in the form {form!r}, not packed:\n{server.log_tail()}")


def warm(server: HttpServer, prompts: TokenPrompts, numbers: Sequence[int]) -> None:
    """First calls compile and allocate, for each size of a batch."""
    for number in numbers:
        many_streams(server, prompts.several(number, common.SHORT_PROMPT), 2)
    time_to_first_token(server, prompts.of(PROMPT))


def measure_all(run: Run, server: HttpServer, prompts: TokenPrompts) -> None:
    for number in STREAMS:
        batch = many_streams(server, prompts.several(number, common.SHORT_PROMPT), run.options.tokens)
        add_rates(run, server.name, batch)
    answer = time_to_first_token(server, prompts.of(PROMPT))
    if answer.cached_tokens:
        raise ServerFailed(f"{server.name} took {answer.cached_tokens} tokens of a new prompt from its cache")
    run.samples.add(FIRST_TOKEN, "s", server.name, answer.total_seconds)


def add_rates(run: Run, side: str, batch: Batch) -> None:
    number = len(batch.answers)
    run.samples.add(throughput(number), "tok/s", side, batch.rate)
    run.samples.add(decode(number), "tok/s", side, batch.decode_rate)


def add_resident(run: Run, server: HttpServer, when: str) -> None:
    run.samples.add(RESIDENT, "MB", f"{server.name}, {when}", rank_bytes(server) / 1e6)


def rank_bytes(server: HttpServer, *, peak: bool = False) -> int:
    process = rank_processes(server)[0]
    return peak_resident_bytes(process.pid) if peak else process.memory_info().rss


def allowed_bytes(stored: int) -> float:
    return RELATIVE * stored + FIXED_BYTES


def drawn(samples: Samples) -> str:
    series = {side: [median(samples.figures[throughput(number)][side]) for number in STREAMS] for side in (NOW, BEFORE)}
    named = {"on packed weights": series[NOW], "unpacked to float32": series[BEFORE]}
    title = "A 4-bit model of 1.1B on two CPU cores"
    return plot.lines(title, "streams at once", "tokens per second, all streams", STREAMS, named)


BENCHMARK = Benchmark("packed", "a 4-bit model on a CPU against another checkout (--before FOLDER)", measure, drawn)
