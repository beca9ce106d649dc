"""What a token costs as contexts, streams, ranks and queues grow: nothing may grow faster than its cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks import plot
from benchmarks.cases import common
from benchmarks.cases.decode import most_tokens
from benchmarks.cases.step import model_of
from benchmarks.flow import all_decode
from benchmarks.growth import excess
from benchmarks.prompts import TokenPrompts
from benchmarks.queueing import FEW, MANY, SCENES, Scene, step_seconds
from benchmarks.report import Goal, Samples
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, chorus
from benchmarks.steps import wait_until_idle

CONTEXT, STREAMS, RANKS, QUEUE = PARTS = ("context", "streams", "ranks", "queue")
TOKEN = "time of a step"
EXCESS = "the largest against the line through smaller ones"
QUEUED = "CPU time of the scheduler for a step"
WORSE_THAN_LINEAR, QUEUE_BOUND = 1.25, 1.5
QUEUE_STEPS = 500


@dataclass(frozen=True)
class Shape:
    contexts: tuple[int, ...]
    streams: tuple[int, ...]
    ranks: tuple[int, ...]
    """A GPU has room for several, which says nothing: there, one."""


LARGE = Shape((256, 512, 1024, 2048, 4096), (1, 2, 4, 8, 16, 32), (1,))
USUAL = Shape((256, 512, 1024, 2048, 4096), (1, 2, 4, 8, 16, 32), (1, 2, 3))
QUICK = Shape((64, 128, 256), (1, 2, 4), (1, 2, 3))


def measure(run: Run) -> list[Goal]:
    options = run.options
    shape = LARGE if options.large else QUICK if options.quick else USUAL
    parts = options.parts or PARTS
    goals = []
    if QUEUE in parts:
        goals += _queue(run)
    served = _Served(run, shape)
    if CONTEXT in parts:
        goals += served.grow(CONTEXT, shape.contexts)
    if STREAMS in parts:
        goals += served.grow(STREAMS, shape.streams)
    if RANKS in parts and len(shape.ranks) > 1:
        goals += served.grow(RANKS, shape.ranks)
    return goals


def _queue(run: Run) -> list[Goal]:
    def one(scene: object, waiting: int) -> None:
        run.samples.add(
            _queue_measure(scene), "ms", _waiting(waiting), 1000 * step_seconds(scene, waiting, QUEUE_STEPS)
        )

    run.interleave(*(partial(one, scene, waiting) for scene in SCENES for waiting in (FEW, MANY)))
    return [Goal(_queue_measure(scene), _waiting(MANY), "<=", QUEUE_BOUND, against=_waiting(FEW)) for scene in SCENES]


class _Served:
    def __init__(self, run: Run, shape: Shape) -> None:
        self._run, self._shape = run, shape
        self._model = model_of(run.options)
        self._prompts = TokenPrompts(self._model, run.options.seed)
        run.notes.append(f"{self._model.name}; all over HTTP but the queue; ranks are stages of a pipeline over grpc")

    def grow(self, part: str, sizes: Sequence[int]) -> list[Goal]:
        """Measure every size once a round."""
        run = self._run
        if part == RANKS:
            for ranks in sizes:
                # One after the other: ranks that wait for each other share two cores as it is.
                with self._server(ranks) as server:
                    run.interleave(partial(self._one, part, server, ranks, 1, common.SHORT_PROMPT))
        else:
            with self._server(1) as server:
                shapes = [(size, 1, size) if part == CONTEXT else (size, size, common.SHORT_PROMPT) for size in sizes]
                run.interleave(*(partial(self._one, part, server, *one) for one in shapes))
        # The best round of each: other programs can only slow one down, and a shape is what is asked for.
        costs = [min(run.samples.figures[_measure_name(part)][str(size)]) for size in sizes]
        run.samples.add(EXCESS, "×", part, excess(sizes, costs))
        return [Goal(EXCESS, part, "<=", WORSE_THAN_LINEAR)]

    @contextmanager
    def _server(self, ranks: int) -> Iterator[HttpServer]:
        several = ("--ranks", str(ranks), "--parallel", "pipeline", "--transport", "grpc") if ranks > 1 else ()
        threads = () if self._run.options.large else ("--threads", "1", "--dtype", "float32")
        with chorus(self._model, *several, *threads, name=f"chorus, {ranks} ranks") as server:
            all_decode(server, self._texts(2, common.SHORT_PROMPT), 4, 16)
            wait_until_idle(server)
            yield server

    def _one(self, part: str, server: HttpServer, size: int, streams: int, prompt: int) -> None:
        """The time of a step that draws a token for each stream."""
        tokens = self._run.options.tokens
        decoded = all_decode(server, self._texts(streams, prompt), tokens, most_tokens(tokens, streams, prompt))
        wait_until_idle(server)
        self._run.samples.add(_measure_name(part), "ms", str(size), 1000 * streams / decoded.rate)
        self._run.say(f"{_measure_name(part)} {size}: {1000 * streams / decoded.rate:.4g} ms")

    def _texts(self, number: int, length: int) -> list[str]:
        return [self._prompts.text(prompt) for prompt in self._prompts.several(number, length)]


def _measure_name(part: str) -> str:
    return f"{TOKEN}, by {part}"


def _queue_measure(scene: Scene) -> str:
    return f"{QUEUED}, {scene.name}"


def _waiting(number: int) -> str:
    return f"{number:,} waiting"


def drawn(samples: Samples) -> str:
    """A picture for each cause."""
    pictures = []
    for part in (CONTEXT, STREAMS, RANKS):
        if figures := samples.figures.get(_measure_name(part)):
            costs = [min(values) for values in figures.values()]
            pictures.append(plot.lines(f"A decode step by {part}", part, "ms", list(figures), {"measured": costs}))
    if queued := [scene for scene in SCENES if _queue_measure(scene) in samples.figures]:
        series = {
            scene.name: [median(values) for values in samples.figures[_queue_measure(scene)].values()]
            for scene in queued
        }
        pictures.append(plot.lines("The scheduler by queue", "requests", "ms of CPU a step", (FEW, MANY), series))
    return plot.stacked(pictures)


BENCHMARK = Benchmark("growth", "a step against context, streams, ranks and the length of the queue", measure, drawn)
