"""Decode steps of one rank in process: the leader's, a bare loop's over the same layers, and where the leader's go.

`Decoding` asks; running this module is the side that computes, one JSON line for each it reads.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.inprocess import Generator
from benchmarks.servers import peer_module_environment
from chorus.platform.process.measuring import seconds_of

SPREAD = 3
"""Rows are unequal: each is so many tokens longer than the one before."""
FIRST_PLAIN, VOCABULARY = 1000, 4000
GREEDY, SAMPLED = "greedy", "sampled"

GRAPH, LAUNCH, SAMPLING, DEVICE = "building the graph", "handing it over", "sampling", "waiting for the device"
OTHERS, TRANSPORT, SCHEDULER, PUBLISH = "waiting for other ranks", "transport", "scheduler", "publish"
REST = "other Python of the leader"
PARTS = (DEVICE, OTHERS, TRANSPORT, SAMPLING, GRAPH, LAUNCH, SCHEDULER, PUBLISH, REST)


@dataclass(frozen=True)
class Taken:
    seconds: float
    cpu_seconds: float
    """Of the thread that decodes, without what MLX computes in its own."""


class Decoding(Generator):
    """A model loaded as a rank has it, and asked for decode steps."""

    def __init__(self, model: Path, *, threads: int, name: str = "the leader, in process") -> None:
        command = [sys.executable, "-m", "benchmarks.leading", str(model), "--threads", str(threads)]
        super().__init__(name, command, peer_module_environment())

    def begin(self, side: str, rows: int, prompt: int, tokens: int) -> None:
        """Read the prompts of so many rows, for this side to decode from then on: at most so many tokens."""
        self.ask({"do": "begin", "side": side, "rows": rows, "prompt": prompt, "tokens": tokens})

    def steps(self, side: str, number: int) -> Taken:
        """One step, of so many."""
        return Taken(**self.ask({"do": "steps", "side": side, "number": number}))

    def parts(self, side: str, number: int) -> dict[str, float]:
        """Seconds of each part of a step."""
        found: dict[str, float] = self.ask({"do": "parts", "side": side, "number": number})
        return found

    def prefill(self, tokens: int, chunk: int) -> float:
        """Seconds of reading one prompt, its first token included."""
        seconds: float = self.ask({"do": "prefill", "tokens": tokens, "chunk": chunk})["seconds"]
        return seconds

    def product_rate(self, rows: int) -> float:
        """Operations per second of a product of so many rows."""
        rate: float = self.ask({"do": "rate", "rows": rows})["rate"]
        return rate

    def end(self, side: str) -> None:
        """Let go of what a side holds."""
        self.ask({"do": "end", "side": side})


BARE, LEADER, LEADER_SAMPLED = "bare loop", "leader", "leader, sampled"
LEADER_HEARD = "leader, heard by a front end"
LISTENING_SECONDS = 30.0
RATE_WIDTH, CPU_RATE_WIDTH, RATE_SECONDS = 8192, 2048, 0.5


class Clock:
    """Seconds by part: while a part runs inside another, the time is the inner one's."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._running: list[str] = []
        self._since = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = self._now()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return wrapped


class _Evaluating:
    """MLX with its evaluations timed, for one module."""

    def __init__(self, mx: Any, clock: Clock, parts: dict[str, str]) -> None:
        self._mx = mx
        for name, part in parts.items():
            setattr(self, name, clock.timed(part, getattr(mx, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mx, name)


@contextmanager
def instrumented(leader: Any, clock: Clock) -> Iterator[None]:
    """The leader's functions timed from outside, for as long as the block lasts."""
    from chorus.engine import leader as leading
    from chorus.rank import runner as running

    runner, scheduler, followers = leader._runner, leader.scheduler, leader._followers
    functions = [
        (scheduler, "next_step", SCHEDULER),
        (scheduler, "finish", SCHEDULER),
        (runner.stage, "forward", GRAPH),
        (leader, "_sample", SAMPLING),
        (leader, "_publish", PUBLISH),
        (followers, "send", TRANSPORT),
        (followers, "receive", OTHERS),
        (followers, "share", TRANSPORT),
    ]
    plain = [(owner, name, getattr(owner, name)) for owner, name, _ in functions]
    modules: list[tuple[Any, dict[str, str]]] = [
        (leading, {"eval": DEVICE}),
        (running, {"async_eval": LAUNCH, "eval": DEVICE}),
    ]
    arrays = modules[0][0].mx
    try:
        for (owner, name, part), (*_, function) in zip(functions, plain, strict=True):
            setattr(owner, name, clock.timed(part, function))
        for module, parts in modules:
            module.mx = _Evaluating(arrays, clock, parts)
        yield
    finally:
        for owner, name, function in plain:
            # What was a method of the class is one again.
            delattr(owner, name) if hasattr(type(owner), name) else setattr(owner, name, function)
        for module, _ in modules:
            module.mx = arrays


def leader_parts(leader: Any, steps: int) -> dict[str, float]:
    """Seconds of each part of a step, over so many."""
    clock = Clock()
    with instrumented(leader, clock):
        for _ in range(steps):
            with clock.part(REST):
                leader.turn()
    return {part: clock.seconds.get(part, 0.0) / steps for part in PARTS}


class Leading:
    """Rows that the leader decodes, with a scheduler; where somebody `listens`, news goes out as an engine's does."""

    def __init__(
        self, stage: Any, prompts: list[tuple[int, ...]], tokens: int, rules: str, listens: Listens | None = None
    ) -> None:
        from chorus.engine.leader import Leader
        from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
        from chorus.messages.engine import Request, Sampling
        from chorus.rank.runner import Runner

        self._told: defaultdict[str, int] = defaultdict(int)
        self._listens = listens
        limits = SchedulerLimits(context=max(map(len, prompts)) + tokens, max_batch=len(prompts))
        self.leader = Leader(Runner(stage), Scheduler(limits), self._publish)
        sampling = Sampling(temperature=0.8, top_p=0.95, seed=1) if rules == SAMPLED else Sampling()
        for row, prompt in enumerate(prompts):
            refused = self.leader.scheduler.submit(Request(f"1:{row}", prompt, tokens, sampling=sampling))
            assert refused is None, refused
        while len(self._told) < len(prompts) or min(self._told.values()) < 2:
            self.leader.turn()

    def _publish(self, news: list[Any]) -> None:
        for progress in news:
            if progress.tokens:
                self._told[progress.id] += len(progress.tokens)
        if self._listens:
            self._listens(news)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.leader.turn()

    def parts(self, number: int) -> dict[str, float]:
        return leader_parts(self.leader, number)


Listens = Callable[[list[Any]], None]


@contextmanager
def front_end() -> Iterator[Listens]:
    """The engine's service with one session open, which a process of its own reads; requests of it are called 1:…"""
    from chorus.engine.service import ServiceThread

    with tempfile.TemporaryDirectory(prefix="chorus-benchmark-") as folder:
        address = f"unix:{folder}/engine"
        service = ServiceThread(address, _Nobody())  # type: ignore[arg-type]
        service.start()
        command = [sys.executable, "-m", "benchmarks.leading", "--listen", address]
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + LISTENING_SECONDS
            while not service._service._sessions:
                assert time.monotonic() < deadline, "nobody listens"
                time.sleep(0.05)
            yield service.publish
        finally:
            reader.kill()
            reader.wait()
            service.stop()


class _Nobody:
    """An engine that takes nothing from its service: requests come from elsewhere."""

    def post(self, command: object) -> bool:
        return False


def listen(address: str) -> None:
    """Read what an engine tells, until it ends."""
    import grpc

    from chorus.messages.proto import engine_pb2_grpc

    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        for _ in engine_pb2_grpc.EngineStub(channel).Session(iter(asked.get, None)):
            pass


class Bare:
    """The same rows and nothing else: the forward, the likeliest token in the graph, the token before it read."""

    def __init__(self, stage: Any, prompts: list[tuple[int, ...]]) -> None:
        import mlx.core as mx

        from chorus.messages.rank import Feed, Step
        from chorus.rank.runner import Runner

        self._stage, self._runner = stage, Runner(stage)
        for row, prompt in enumerate(prompts, 1):
            step = Step(row, feeds=(Feed(row, prompt, begins=True),), logits=True)
            mx.eval(self._runner.run(step))
        rows = range(1, len(prompts) + 1)
        # The rows become a batch as they do for the leader.
        feeds = tuple(Feed(row, (FIRST_PLAIN,)) for row in rows)
        (logits,) = self._runner.run(Step(len(prompts) + 1, feeds=feeds, decode=True, logits=True))
        self._tokens = mx.argmax(logits, axis=-1)
        mx.eval(self._tokens)
        self._cache = self._runner._lanes[0].hold(tuple(rows), {})

    def steps(self, number: int) -> None:
        import mlx.core as mx
        import numpy as np

        for _ in range(number):
            (logits,) = self._stage.forward(self._tokens[:, None], self._cache, logits=True)
            tokens = mx.argmax(logits, axis=-1)
            mx.async_eval(tokens)
            np.array(self._tokens)
            self._tokens = tokens


def prefill_seconds(stage: Any, tokens: int, chunk: int) -> float:
    """Of one prompt, in chunks, its first token included."""
    import mlx.core as mx

    from chorus.messages.rank import Feed, Step
    from chorus.rank.runner import Runner

    runner, prompt = Runner(stage), _prompt(random.Random(tokens), tokens)
    begin = time.perf_counter()
    for number, start in enumerate(range(0, tokens, chunk), 1):
        part = prompt[start : start + chunk]
        last = start + chunk >= tokens
        step = Step(number, feeds=(Feed(1, part, partial=not last, begins=not start),), logits=last)
        outputs = runner.run(step)
    mx.eval(mx.argmax(outputs[0], axis=-1))
    return time.perf_counter() - begin


def product_rate(rows: int, dtype: str) -> float:
    """The machine's profile takes 256 rows, which leave a large GPU idle."""
    import mlx.core as mx

    width = RATE_WIDTH if mx.default_device() == mx.gpu else CPU_RATE_WIDTH
    x, weight = (mx.random.normal((size, width)).astype(getattr(mx, dtype)) for size in (rows, width))
    mx.eval(x, weight)
    return 2 * rows * width**2 / min(seconds_of(lambda: mx.eval(x @ weight.T), RATE_SECONDS))


def unequal_prompts(rows: int, tokens: int, seed: int = 1) -> list[tuple[int, ...]]:
    """As long as asked in the middle, no two alike."""
    chance = random.Random(seed)
    shortest = max(1, tokens - SPREAD * (rows // 2))
    return [_prompt(chance, shortest + SPREAD * row) for row in range(rows)]


def _prompt(chance: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(chance.choices(range(FIRST_PLAIN, VOCABULARY), k=tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--listen", metavar="ADDRESS", help="only read what the engine at this address tells")
    options = parser.parse_args()
    if options.listen:
        listen(options.listen)
        return
    answers, sys.stdout = sys.stdout, sys.stderr
    from chorus import platform

    platform.prepare(options.threads)
    with ExitStack() as cleanup:
        for answer in _serve(options.model, cleanup):
            print(json.dumps(answer), file=answers, flush=True)


def _serve(model: Path, cleanup: ExitStack) -> Iterator[dict[str, Any]]:
    import mlx.core as mx

    from chorus.rank.load import load_shard

    shard = load_shard(model, range)
    stage, sides = shard.stage, dict[str, Leading | Bare]()
    yield {"dtype": shard.dtype, "policy": shard.policy.name}
    for line in sys.stdin:
        asked = json.loads(line)
        match asked["do"]:
            case "begin":
                prompts, tokens, side = unequal_prompts(asked["rows"], asked["prompt"]), asked["tokens"], asked["side"]
                if side == BARE:
                    sides[side] = Bare(stage, prompts)
                else:
                    listens = cleanup.enter_context(front_end()) if side == LEADER_HEARD else None
                    rules = SAMPLED if side == LEADER_SAMPLED else GREEDY
                    sides[side] = Leading(stage, prompts, tokens, rules, listens)
                yield {}
            case "steps":
                begin, worked, number = time.perf_counter(), time.thread_time(), asked["number"]
                sides[asked["side"]].steps(number)
                taken = Taken((time.perf_counter() - begin) / number, (time.thread_time() - worked) / number)
                yield asdict(taken)
            case "parts":
                leading = sides[asked["side"]]
                assert isinstance(leading, Leading)
                yield leading.parts(asked["number"])
            case "prefill":
                yield {"seconds": prefill_seconds(stage, asked["tokens"], asked["chunk"])}
            case "rate":
                yield {"rate": product_rate(asked["rows"], shard.dtype)}
            case "end":
                del sides[asked["side"]]
                mx.clear_cache()
                yield {}


if __name__ == "__main__":
    main()
