"""Two agents that send their whole history with every turn, against upstream's server, which keeps it too."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx

from benchmarks.agents import Fed, Script, Session, Shape, Turn, play, write_script
from benchmarks.models import AGENT, AGENT_TINY, LLAMA_7B, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, ServerFailed, chorus, mlx_launch, mlx_lm_server
from benchmarks.steps import StepLog, fed_tokens
from chorus.platform.cpu import cores

SESSION = "session of two agents, 14 turns each"
FIRST_TOKEN = "first token of a turn, median"
PROMPT_READ = "prompt tokens read, as the server says"
PROMPT_FED = "prompt tokens fed / those after the longest prefix already fed"
PIPELINE_ROUNDS = 3
"""Upstream's pipeline takes minutes for each."""
TINY = Shape(system=60, tools=2, task=20, result=(4, 12), answer=4)
LARGE = Shape(system=2000, tools=20, task=400, result=(100, 1500), answer=64)


def measure(run: Run) -> list[Goal]:
    name, shape = (LLAMA_7B, LARGE) if run.options.large else (AGENT, Shape())
    if run.options.quick:
        name, shape = AGENT_TINY, TINY
    model = model_folder(name)
    compared = _Compared(run, model, shape)
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    run.notes.append(f"{name}, {shape}; {threads} BLAS threads on each side on one rank, one a rank on two")
    goals = compared.sides(
        partial(chorus, model, *_options(run, threads), name="chorus, 1 rank"),
        mlx_lm_server(model, threads=threads, name="mlx_lm.server, 1 rank"),
        bound=1.0,
    )
    if run.options.large:
        return goals
    two = ["--ranks", "2", "--transport", "ring", "--parallel", "pipeline"]
    return goals + compared.sides(
        partial(chorus, model, *_options(run, 1), *two, name="chorus, 2 ranks, ring"),
        mlx_launch(model, "--pipeline", ranks=2, threads=1, name="mlx_lm.server, 2 ranks, ring"),
        bound=0.5,
        most_rounds=PIPELINE_ROUNDS,
    )


def _options(run: Run, threads: int) -> list[str]:
    """An accelerator computes in the precision of the file on both sides, and needs no BLAS."""
    return [] if run.options.large else ["--threads", str(threads), "--dtype", "float32"]


class _Compared:
    """Both sides play the same scripts, a new one every round."""

    def __init__(self, run: Run, model: Path, shape: Shape) -> None:
        self._run, self._shape = run, shape
        self._prompts = Prompts(model, run.options.seed)
        self._chance = Random(run.options.seed)

    def sides(
        self, ours: Callable[..., HttpServer], peer: HttpServer, *, bound: float, most_rounds: int | None = None
    ) -> list[Goal]:
        run = self._run
        with ExitStack() as started:
            folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="chorus-benchmark-steps-")))
            log = StepLog(folder / "steps")
            server = started.enter_context(ours("--step-log", str(log.path)))
            started.enter_context(peer)
            play(peer, self._script(turns=2), self._shape.answer)
            peer.pause()
            fed = Fed()
            self._count(server, log, fed, play(server, self._script(turns=2), self._shape.answer))
            scripts: dict[str, list[Script]] = {server.name: [], peer.name: []}

            def next_script(side: str) -> Script:
                """Whoever comes first in a round writes it for both."""
                if not scripts[side]:
                    script = self._script(self._shape.turns)
                    for waiting in scripts.values():
                        waiting.append(script)
                return scripts[side].pop(0)

            def our_turn() -> None:
                session = play(server, next_script(server.name), self._shape.answer)
                self._add(server.name, session)
                read, needed = self._count(server, log, fed, session)
                run.samples.add(PROMPT_FED, "×", server.name, read / needed)

            def peer_turn() -> None:
                with awake(peer):
                    self._add(peer.name, play(peer, next_script(peer.name), self._shape.answer))

            run.interleave(our_turn, peer_turn, most_rounds=most_rounds)
        return [
            Goal(SESSION, server.name, "<=", bound, against=peer.name),
            Goal(PROMPT_FED, server.name, "<=", 1.05),
        ]

    def _script(self, turns: int) -> Script:
        return write_script(self._prompts, replace(self._shape, turns=turns), self._chance)

    def _add(self, side: str, session: Session) -> None:
        self._run.samples.add(SESSION, "s", side, session.seconds)
        first = median(turn.answer.first_seconds for turn in session.turns)
        self._run.samples.add(FIRST_TOKEN, "s", side, first)
        read = sum(turn.answer.prompt_tokens - turn.answer.cached_tokens for turn in session.turns)
        self._run.samples.add(PROMPT_READ, "tokens", side, read)

    def _count(self, server: HttpServer, log: StepLog, fed: Fed, session: Session) -> tuple[int, int]:
        """The prompt tokens that the ranks were fed, and those that a perfect cache would have had to feed."""
        drawn = sum(turn.answer.completion_tokens - 1 for turn in session.turns)
        read = fed_tokens(log.new(server)) - drawn
        return read, sum(_fresh(server, fed, session.tools, turn) for turn in session.turns)


def _fresh(server: HttpServer, fed: Fed, tools: Sequence[dict[str, Any]], turn: Turn) -> int:
    prompt = _tokens(server, {"messages": turn.messages, "tools": tools})
    answer = _tokens(server, {"prompt": turn.answer.text, "add_special_tokens": False})
    for known, counted in ((prompt, turn.answer.prompt_tokens), (answer, turn.answer.completion_tokens)):
        if len(known) != counted:
            raise ServerFailed(f"{server.name} counted {counted} tokens where its tokenizer finds {len(known)}")
    return fed.fresh(prompt, answer)


def _tokens(server: HttpServer, text: dict[str, object]) -> list[int]:
    response = httpx.post(f"{server.url}/tokenize", json=text, timeout=30.0, trust_env=False)
    if response.status_code != 200:
        raise ServerFailed(f"{server.name}: /tokenize answers {response.status_code}: {response.text[:200]}")
    tokens: list[int] = response.json()["tokens"]
    return tokens


BENCHMARK = Benchmark("agents", "two agents that send their whole history each turn, against mlx_lm.server", measure)
