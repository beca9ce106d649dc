"""What is asked, in which order: streams side by side, or agents that send their whole history with every turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from chorus.bench.client import Client, Message, request_body
from chorus.bench.figures import Answer, Round
from chorus.bench.prompts import Scale, Words, fitted

FEW_WORDS, MANY_WORDS = 4, 100
WARM_TOKENS = 4
NOTHING_SAID = "-"
"""For an answer without text: a history with an empty message is refused by some."""

_Result = TypeVar("_Result")
Told = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """What is asked at a time, round after round."""

    together: int
    prompt_tokens: int
    """Of each prompt, or of what an agent says in each turn; about so many, on top of what prompts share."""
    turns: int | None = None
    """Of each agent; None: single streams."""

    @property
    def kind(self) -> Literal["streams", "agents"]:
        return "streams" if self.turns is None else "agents"

    def __str__(self) -> str:
        many = "s" if self.together > 1 else ""
        if self.turns is None:
            return f"{self.together} stream{many}, {self.prompt_tokens} prompt tokens"
        return f"{self.together} agent{many}, {self.turns} turns of {self.prompt_tokens} tokens"


@dataclass(frozen=True)
class Workload:
    """All that is to be measured."""

    cases: tuple[Case, ...]
    tokens: int
    """Of each answer, at most."""
    rounds: int
    shared_prefix: int = 0
    """So many tokens that all prompts begin with."""
    completions: bool = False
    """Ask for completions of texts; otherwise for answers in a chat."""

    @property
    def most_streams(self) -> int:
        return max(case.together for case in self.cases)


@dataclass
class Measured:
    """What a case has shown so far."""

    case: Case
    rounds: list[Round] = field(default_factory=list)


@dataclass
class Results:
    """Grows round by round: whoever stops the measuring has what came before."""

    model: str | None = None
    cases: list[Measured] = field(default_factory=list)
    complete: bool = False

    @property
    def measured(self) -> list[Measured]:
        return [each for each in self.cases if each.rounds]


class Measuring:
    """One workload against one endpoint."""

    def __init__(self, client: Client, workload: Workload, model: str, told: Told, words: Words | None = None) -> None:
        self._client = client
        self._workload = workload
        self._model = model
        self._told = told
        self._words = words or Words()
        self._scale = Scale()
        self._prefix = ""

    async def run(self, results: Results) -> None:
        self._told("finding out how long its tokens are")
        await self._prepare()
        for case in self._workload.cases:
            measured = Measured(case)
            results.cases.append(measured)
            self._told(f"{case}: warming up")
            await _at_once([self._stream(self._prompt(1), WARM_TOKENS, 0.0) for _ in range(case.together)])
            for number in range(1, self._workload.rounds + 1):
                self._told(f"{case}: round {number} of {self._workload.rounds}")
                measured.rounds.append(await self._round(case))
        results.complete = True

    async def _prepare(self) -> None:
        """The length of words in tokens, and the shared prefix where the server keeps it."""
        few, many = [await self._stream(self._prompt(words), 1, 0.0) for words in (FEW_WORDS, MANY_WORDS)]
        if few.prompt_tokens is not None and many.prompt_tokens is not None:
            self._scale = fitted((FEW_WORDS, few.prompt_tokens), (MANY_WORDS, many.prompt_tokens))
        if self._workload.shared_prefix:
            self._prefix = self._words.some(self._scale.words_beside(self._workload.shared_prefix))
            await self._stream(self._prompt(1), 1, 0.0)

    async def _round(self, case: Case) -> Round:
        words = self._scale.words_for(case.prompt_tokens)
        # Written before the clock runs.
        said = [
            [self._prompt(words), *(self._words.prompt(words) for _ in range(1, case.turns or 1))]
            for _ in range(case.together)
        ]
        zero = time.perf_counter()
        if case.turns is None:
            answers = await _at_once([self._stream(text, self._workload.tokens, zero) for (text,) in said])
        else:
            agents = await _at_once([self._agent(texts, zero) for texts in said])
            answers = [answer for turns in agents for answer in turns]
        return Round(case.together, time.perf_counter() - zero, tuple(answers))

    def _prompt(self, words: int) -> str:
        """What a stream is asked, and an agent at first."""
        return self._words.prompt(words, self._prefix)

    async def _stream(self, text: str, tokens: int, zero: float) -> Answer:
        asked = {"prompt": text} if self._workload.completions else {"messages": [{"role": "user", "content": text}]}
        answer, _ = await self._client.answer(request_body(self._model, tokens, **asked), zero)
        return answer

    async def _agent(self, said: Sequence[str], zero: float) -> list[Answer]:
        answers = []
        history: list[Message] = []
        for text in said:
            history.append({"role": "user", "content": text})
            body = request_body(self._model, self._workload.tokens, messages=list(history))
            answer, reply = await self._client.answer(body, zero)
            answers.append(answer)
            history.append({"role": "assistant", "content": reply or NOTHING_SAID})
        return answers


async def _at_once(asked: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """All of them; the first that fails ends the others, and is what is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
