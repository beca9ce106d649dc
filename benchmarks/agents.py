"""Agents at work: each sends its whole history with every turn, and what a perfect cache would still have to read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from benchmarks.load import REQUEST_SECONDS, Answer, chat_body, check_useful, one_answer
from benchmarks.prompts import Prompts
from benchmarks.servers import HttpServer

Message = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How long the parts of a session are, in tokens of text; JSON and the template's marks come on top."""

    agents: int = 2
    turns: int = 14
    system: int = 200
    tools: int = 3
    task: int = 60
    result: tuple[int, int] = (20, 80)
    """The shortest and the longest that a tool returns."""
    answer: int = 16


@dataclass(frozen=True)
class Script:
    """All that the agents will say: the same system message and tools, each its own task and results."""

    system: str
    tools: tuple[dict[str, Any], ...]
    said: tuple[tuple[str, ...], ...]
    """By agent: its task, then a tool's result for every later turn."""


@dataclass(frozen=True)
class Turn:
    messages: tuple[Message, ...]
    answer: Answer


@dataclass(frozen=True)
class Session:
    seconds: float
    tools: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]
    """In the order in which they were sent."""


@dataclass
class Fed:
    """Every sequence that a model was fed, and how much of a new one it was not."""

    sequences: list[tuple[int, ...]] = field(default_factory=list)

    def fresh(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """How many tokens of the prompt come after its longest beginning that was fed; from now on this one counts.

        An answer's last token was drawn and never fed. A prompt that was fed whole still needs one token.
        """
        longest = max((common_beginning(prompt, known) for known in self.sequences), default=0)
        self.sequences.append((*prompt, *answer[:-1]))
        return max(1, len(prompt) - longest)


def common_beginning(one: Iterable[int], other: Iterable[int]) -> int:
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


def write_script(prompts: Prompts, shape: Shape, chance: Random) -> Script:
    def said() -> tuple[str, ...]:
        results = (prompts.of(chance.randint(*shape.result)) for _ in range(shape.turns - 1))
        return (prompts.of(shape.task), *results)

    return Script(
        system=prompts.of(shape.system),
        tools=tuple(_tool(prompts, number) for number in range(shape.tools)),
        said=tuple(said() for _ in range(shape.agents)),
    )


def play(server: HttpServer, script: Script, tokens: int) -> Session:
    """The agents at the same time, each waiting for its answers."""
    return asyncio.run(_play(server, script, tokens))


async def _play(server: HttpServer, script: Script, tokens: int) -> Session:
    turns: list[tuple[float, Turn]] = []
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False) as client:

        async def work(said: Sequence[str]) -> None:
            history: list[Message] = [{"role": "system", "content": script.system}]
            for number, text in enumerate(said):
                new = {"role": "tool", "tool_call_id": f"call_{number}"} if number else {"role": "user"}
                history.append({**new, "content": text})
                sent, asked = time.perf_counter(), tuple(history)
                answer = await one_answer(client, server, chat_body(asked, tokens, script.tools))
                check_useful(server.name, answer, tokens)
                turns.append((sent, Turn(asked, answer)))
                history.append({"role": "assistant", "content": answer.text})

        begin = time.perf_counter()
        await asyncio.gather(*map(work, script.said))
        seconds = time.perf_counter() - begin
    return Session(seconds, script.tools, tuple(turn for _, turn in sorted(turns, key=lambda entry: entry[0])))


def _tool(prompts: Prompts, number: int) -> dict[str, Any]:
    argument = {"type": "string", "description": prompts.of(8)}
    parameters = {"type": "object", "properties": {"path": argument, "pattern": argument}, "required": ["path"]}
    function = {"name": f"tool_{number}", "description": prompts.of(40), "parameters": parameters}
    return {"type": "function", "function": function}
