"""How soon an answer begins when most of its prompt was read before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import Answer, chat_body, streams
from benchmarks.models import (
    AGENT_TINY,
    FLOAT32_SUFFIX,
    HYBRID,
    HYBRID_TINY,
    LLAMA_7B,
    SMOLLM2,
    model_folder,
)
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

MOST_ROUNDS = 3
RANKS = (1, 2, 3)
FIRST, NEXT, EDITED = "first time", "again, with a next turn", "again, last turn rewritten"
BOUND = 0.1
PROMPT, LARGE_PROMPT = 1500, 20_000
TURN = 20
"""Tokens of a user's message at the end."""


@dataclass(frozen=True)
class Served:
    name: str
    ranks: int

    @property
    def measure(self) -> str:
        return f"first token, {self.name}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


def measure(run: Run) -> list[Goal]:
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    names, ranks, length = (SMOLLM2 + FLOAT32_SUFFIX, HYBRID), RANKS, PROMPT
    if run.options.large:
        names, ranks, length = (LLAMA_7B,), (1,), LARGE_PROMPT
    if run.options.quick:
        names, ranks, length = (AGENT_TINY, HYBRID_TINY), ranks[:2], 200
    run.notes.append(f"a conversation of {length:,} tokens, the last turn of {TURN}; the time of a one-token answer")
    run.notes.append("the hybrid has a state that cannot go back: a rewritten turn is shown without a goal")
    served = [Served(name, count) for name in names for count in ranks]
    for each in served:
        run.say(each.measure)
        _measure_one(run, each, model_folder(each.name), length)
    return [Goal(each.measure, NEXT, "<=", BOUND, against=FIRST) for each in served]


def _measure_one(run: Run, served: Served, model: Path, length: int) -> None:
    options = [] if run.options.large else ["--threads", "1", "--dtype", "float32"]
    prompts = Prompts(model, run.options.seed)
    with chorus(model, *options, "--ranks", str(served.ranks)) as server:

        def converse() -> None:
            told = conversation(prompts, length)
            first = ask(server, told)
            if first.cached_tokens > TURN:
                raise ServerFailed(f"{server.name} took {first.cached_tokens} tokens of a new prompt from its cache")
            answered = [*told, {"role": "assistant", "content": first.text}]
            following = ask(server, [*answered, {"role": "user", "content": prompts.of(TURN)}])
            edited = ask(server, [*told[:-1], {"role": "user", "content": prompts.of(TURN)}])
            for side, answer in ((FIRST, first), (NEXT, following), (EDITED, edited)):
                run.samples.add(served.measure, "s", side, answer.total_seconds)

        # First calls load, compile and allocate.
        ask(server, conversation(prompts, length))
        run.interleave(converse, most_rounds=MOST_ROUNDS)


def conversation(prompts: Prompts, length: int) -> list[dict[str, Any]]:
    """Two thirds of it instructions, the rest an exchange; no other one begins like it."""
    system, question = length * 2 // 3, length // 5
    said = {"system": system, "user": question, "assistant": length - system - question - TURN}
    history = [{"role": role, "content": prompts.of(tokens)} for role, tokens in said.items()]
    return [*history, {"role": "user", "content": prompts.of(TURN)}]


def ask(server: HttpServer, messages: list[dict[str, Any]]) -> Answer:
    return streams(server, [chat_body(messages, 1)]).answers[0]


BENCHMARK = Benchmark("prefix", "a long prompt once more with a new last turn: time to first token", measure)
