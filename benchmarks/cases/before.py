"""This checkout against another one: whether a change that should change nothing made anything slower."""

from __future__ import annotations

import contextlib
import http.server
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.cases import common, overhead
from benchmarks.machine import own_bytes
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

AS_FAST = 0.98
NOW, BEFORE = "now", "before"
START, REST, MORE = "start", "memory at rest", "more memory at rest"
MORE_MB = 10.0
REST_SECONDS, STEADY_BYTES = 20, 500_000
KINDS = {"1 rank": [], "2 ranks": ["--ranks", "2"]}
TRACED, AS_FAST_TRACED = "traced", 0.95
PARTS = (START, *KINDS, TRACED)


def measure(run: Run) -> list[Goal]:
    if not run.options.before:
        raise ServerFailed("--before names no checkout to compare with")
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    parts = run.options.parts or PARTS
    goals = starts(run, Path(run.options.before), model) if START in parts else []
    for kind, options in ((kind, options) for kind, options in KINDS.items() if kind in parts):
        run.say(kind)
        goals += compare(run, kind, Path(run.options.before), model, prompts, options)
    if TRACED in parts:
        run.say(TRACED)
        with collector() as address:
            traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": address}
            goals += compare(run, TRACED, Path(run.options.before), model, prompts, [], traced, AS_FAST_TRACED)
    return goals


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """A place that takes all traces and keeps none."""

    class Taker(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def starts(run: Run, before: Path, model: Path) -> list[Goal]:
    """Each starts alone, in turn; when it is ready nobody asks it for anything."""

    def start(side: str, checkout: Path | None) -> None:
        began = time.monotonic()
        with chorus(model, "--threads", "1", "--dtype", "float32", name=side, checkout=checkout) as server:
            run.samples.add(START, "s", side, time.monotonic() - began)
            run.samples.add(REST, "MB", side, at_rest(server) / 1e6)

    run.say("start and rest")
    run.interleave(partial(start, NOW, None), partial(start, BEFORE, before))
    now, then = (statistics.median(run.samples.figures[REST][side]) for side in (NOW, BEFORE))
    run.samples.add(MORE, "MB", NOW, now - then)
    return [Goal(START, NOW, "<=", 1 / AS_FAST, against=BEFORE), Goal(MORE, NOW, "<=", MORE_MB)]


def at_rest(server: HttpServer) -> int:
    """Once it gives nothing back any more: the engine does so a second after its last step."""
    seen = own_bytes(server.processes())
    for _ in range(REST_SECONDS):
        time.sleep(1)
        before, seen = seen, own_bytes(server.processes())
        if abs(seen - before) < STEADY_BYTES:
            break
    return seen


def compare(
    run: Run,
    kind: str,
    before: Path,
    model: Path,
    prompts: Prompts,
    options: list[str],
    environment: Mapping[str, str] | None = None,
    as_fast: float = AS_FAST,
) -> list[Goal]:
    """The same options for both, `environment` for ours alone; only one of them works at a time.

    The server that starts first is some percent slower than its twin, so each starts first for half of the rounds.
    """
    plain = [*options, "--threads", "1", "--dtype", "float32"]
    half = run.options.rounds // 2
    for rounds, turned in ((run.options.rounds - half, False), (half, True)):
        ours = chorus(model, *plain, name=f"{NOW}, {kind}", environment=environment)
        theirs = chorus(model, *plain, name=f"{BEFORE}, {kind}", checkout=before)
        with contextlib.ExitStack() as started:
            for server in (theirs, ours) if turned else (ours, theirs):
                common.warm(started.enter_context(server), prompts, long_prompt=True)
            run.interleave(
                *(partial(measure_all, run, server, prompts) for server in (ours, theirs)), most_rounds=rounds
            )
    return [
        Goal(common.DECODE, ours.name, ">=", as_fast, against=theirs.name),
        Goal(common.THROUGHPUT, ours.name, ">=", as_fast, against=theirs.name),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 1 / as_fast, against=theirs.name),
        Goal(overhead.COST, ours.name, "<=", 1 / as_fast, against=theirs.name),
    ]


def measure_all(run: Run, server: HttpServer, prompts: Prompts) -> None:
    common.decode(run, server, prompts)
    common.throughput(run, server, prompts)
    common.first_token(run, server, prompts)
    overhead.measure_stream(run, server, prompts)


BENCHMARK = Benchmark(
    "before", "this checkout against another one (--before FOLDER): start, one rank, two, traced", measure
)
