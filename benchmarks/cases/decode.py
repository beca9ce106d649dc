"""How fast streams decode once all do, and how prompts are read beside them, against upstream's server and batch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.cases import common
from benchmarks.flow import all_decode, read_beside
from benchmarks.inprocess import InProcess
from benchmarks.models import AGENT, LLAMA_MLP_14336, LLAMA_MLP_14336_4BIT, model_folder
from benchmarks.prompts import TokenPrompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus, mlx_lm_server
from benchmarks.steps import wait_until_idle, wait_until_quiet
from chorus.platform.cpu import cores

BATCH, SHORT, LONG, PROMPTS = PARTS = ("batch", "short", "long", "prompts")
OURS, PEER, BARE = "chorus", "mlx_lm.server", "BatchGenerator"
AT_LEAST_ONE = 1.0
QUANTIZED = 0.95
"""Of the goals of bfloat16: what a quantized model must reach."""
SPARE_TOKENS, PREFILL_CHUNK = 1024, 256
"""A stream may decode once for every so many tokens of the prompts that are read beside it, and many times more:
upstream's server takes new ones only twice a second. Nobody waits for all of them.
"""
MAX_BATCH = 40
"""Those who run and those who come, all at once; the default of both servers is 32."""
LARGE_CACHE = "40GB"
"""Twice what the streams take: the peer is loaded beside us."""

READ = "prompts read beside running streams"
RUNNING_PAUSE = "longest pause of a stream that ran before"
BEGUN_PAUSE = "longest pause of a stream that came with them"
MEDIAN_FIRST = "median first token of these prompts"
CLIENT = "the client's own share of a core"


@dataclass(frozen=True)
class Shape:
    short: tuple[int, ...]
    """Numbers of streams with short prompts."""
    long: tuple[int, ...]
    length: int
    """Of a long prompt, in tokens."""
    running: int
    """Streams that decode while prompts come."""
    coming: int


LARGE = Shape(short=(1, 8, 32), long=(8, 32), length=4096, running=4, coming=32)
USUAL = Shape(short=(1, 8, 16), long=(8,), length=512, running=4, coming=8)
QUICK = Shape(short=(1, 4), long=(4,), length=256, running=2, coming=4)

SHORT_GOALS = {1: 200, 8: 850, 32: 3500}
LONG_GOALS = {8: 700, 32: 2000}
READ_GOAL, PAUSE_GOAL_MS = 25_000, 150


def measure(run: Run) -> list[Goal]:
    options = run.options
    shape = LARGE if options.large else QUICK if options.quick else USUAL
    name = AGENT if not options.large else LLAMA_MLP_14336_4BIT if options.bits else LLAMA_MLP_14336
    run.say(f"writing {name}, if it is not there yet")
    return _Measured(run, name, shape, options.parts or PARTS).everything()


def once_all_decode(streams: int, prompt: int) -> str:
    return f"once all decode, {streams} stream{'s' if streams > 1 else ''}, {prompt:,}-token prompts"


class _Measured:
    def __init__(self, run: Run, name: str, shape: Shape, parts: tuple[str, ...]) -> None:
        self._run, self._shape, self._parts = run, shape, parts
        self._model = model_folder(name)
        self._prompts = TokenPrompts(self._model, run.options.seed)
        self._threads = cores.usable_cores()
        """Of upstream's BLAS on a CPU; ours chooses its own."""
        run.notes.append(f"{name}, one rank, {shape}; on a CPU {self._threads} threads of upstream's BLAS")

    def everything(self) -> list[Goal]:
        run = self._run
        if BATCH in self._parts:
            # Before the servers: all three would not fit into the memory of one GPU.
            self._batch()
        if set(self._parts) <= {BATCH}:
            return []
        with ExitStack() as started:
            servers = [started.enter_context(self._chorus())]
            run.say("chorus is ready")
            if run.options.peer:
                servers.append(started.enter_context(self._peer()))
                run.say(f"{PEER} is ready")
            for server in servers:
                self._warm(server)
            parts = [part for part in PARTS if part in self._parts and part != BATCH]
            run.interleave(*(partial(self._turn, server, part) for part in parts for server in servers))
        return self._goals()

    def _chorus(self) -> HttpServer:
        options = ("--cache-memory", LARGE_CACHE) if self._run.options.large else ("--dtype", "float32")
        return chorus(self._model, *options, name=OURS, environment={"CHORUS_ENGINE__MAX_BATCH": str(MAX_BATCH)})

    def _peer(self) -> HttpServer:
        concurrency = ("--decode-concurrency", str(MAX_BATCH))
        return mlx_lm_server(self._model, *concurrency, threads=self._threads, name=PEER)

    def _batch(self) -> None:
        tokens = self._run.options.tokens
        with InProcess(self._model, threads=self._threads, name=BARE) as bare:
            self._run.say(f"{BARE} is ready")

            def one(streams: int, length: int, *, counted: bool = True) -> None:
                prompts = self._prompts.several(streams, length)
                rate = bare.decode_rate(prompts, tokens if counted else 2, most_tokens(tokens, streams, length))
                if counted:
                    self._add(once_all_decode(streams, length), "tok/s", BARE, rate)

            batches = [(streams, common.SHORT_PROMPT) for streams in self._shape.short if streams > 1]
            batches += [(streams, self._shape.length) for streams in self._shape.long]
            one(*batches[0], counted=False)
            self._run.interleave(*(partial(one, *batch) for batch in batches))

    def _turn(self, server: HttpServer, part: str) -> None:
        if server.name != PEER:
            self._measure(server, part)
            return
        with awake(server):
            self._measure(server, part)

    def _measure(self, server: HttpServer, part: str) -> None:
        match part:
            case "short":
                for streams in self._shape.short:
                    self._decode(server, streams, common.SHORT_PROMPT)
            case "long":
                for streams in self._shape.long:
                    self._decode(server, streams, self._shape.length)
            case "prompts":
                self._read(server)

    def _decode(self, server: HttpServer, streams: int, length: int) -> None:
        tokens = self._run.options.tokens
        decoded = all_decode(server, self._texts(streams, length), tokens, most_tokens(tokens, streams, length))
        measure = once_all_decode(streams, length)
        self._add(measure, "tok/s", server.name, decoded.rate)
        self._add(f"last first token, {measure.partition(', ')[2]}", "s", server.name, decoded.first_seconds)
        self._add(CLIENT, "of a core", server.name, decoded.client_share)
        self._settle(server)

    def _read(self, server: HttpServer) -> None:
        shape, tokens = self._shape, self._run.options.tokens
        most = most_tokens(tokens, shape.coming, shape.length)
        running, coming = self._texts(shape.running, common.SHORT_PROMPT), self._texts(shape.coming, shape.length)
        reading = read_beside(server, running, coming, (most, most))
        self._add(READ, "tok/s", server.name, shape.coming * shape.length / reading.seconds)
        self._add(MEDIAN_FIRST, "s", server.name, median(reading.first_seconds))
        self._add(RUNNING_PAUSE, "ms", server.name, 1000 * max(reading.running_pauses))
        self._add(BEGUN_PAUSE, "ms", server.name, 1000 * max(reading.begun_pauses))
        self._settle(server)

    def _warm(self, server: HttpServer) -> None:
        """First calls compile and allocate. The peer sleeps afterwards."""
        for streams in self._shape.short:
            all_decode(server, self._texts(streams, common.SHORT_PROMPT), 4, SPARE_TOKENS)
            self._settle(server)
        if set(self._parts) & {LONG, PROMPTS}:
            streams = min(self._shape.long)
            all_decode(server, self._texts(streams, self._shape.length), 2, most_tokens(2, streams, self._shape.length))
            self._settle(server)
        if server.name == PEER:
            server.pause()

    def _settle(self, server: HttpServer) -> None:
        """Until it computes nothing any more for streams that were left; upstream's does not say whether it does."""
        (wait_until_quiet if server.name == PEER else wait_until_idle)(server)

    def _texts(self, number: int, length: int) -> list[str]:
        return [self._prompts.text(prompt) for prompt in self._prompts.several(number, length)]

    def _add(self, measure: str, unit: str, side: str, figure: float) -> None:
        self._run.samples.add(measure, unit, side, figure)
        self._run.say(f"{side}: {measure}: {figure:,.4g} {unit}")

    def _goals(self) -> list[Goal]:
        measured = self._run.samples.figures
        goals = self._large_goals() if self._run.options.large else []
        if self._run.options.peer:
            rates = [measure for measure, sides in measured.items() if PEER in sides and _is_rate(measure)]
            goals += [Goal(rate, OURS, ">=", AT_LEAST_ONE, against=PEER) for rate in rates]
        return goals

    def _large_goals(self) -> list[Goal]:
        factor = QUANTIZED if self._run.options.bits else 1.0
        by_part = {
            SHORT: {once_all_decode(number, common.SHORT_PROMPT): goal for number, goal in SHORT_GOALS.items()},
            LONG: {once_all_decode(number, self._shape.length): goal for number, goal in LONG_GOALS.items()},
            PROMPTS: {READ: READ_GOAL},
        }
        rates = {measure: goal for part in self._parts for measure, goal in by_part.get(part, {}).items()}
        goals = [Goal(measure, OURS, ">=", factor * goal) for measure, goal in rates.items()]
        if PROMPTS in self._parts:
            goals += [Goal(pause, OURS, "<=", PAUSE_GOAL_MS) for pause in (RUNNING_PAUSE, BEGUN_PAUSE)]
        return goals


def _is_rate(measure: str) -> bool:
    return measure == READ or measure.startswith("once all decode")


def most_tokens(tokens: int, streams: int, length: int) -> int:
    """Enough for those who have to wait for the others' prompts."""
    return tokens + SPARE_TOKENS + streams * length // PREFILL_CHUNK


BENCHMARK = Benchmark("decode", "streams once all decode, and prompts read beside them, against mlx_lm", measure)
