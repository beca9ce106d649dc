"""Holds the conversations of a sitting with a leader in this process, turn by turn.

The leader takes a turn when it is told to, so that what is asked, cancelled and shared when follows from the seed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from chorus.config.engine import EngineSpec
from chorus.engine import room
from chorus.engine.leader import Cancel, Leader, Submit
from chorus.engine.lifecycle import process
from chorus.engine.lifecycle.process import Engine
from chorus.engine.scheduling import reuse, sequences
from chorus.messages.engine import Finish, Progress, Request, Timing
from chorus.messages.rank import Step
from tests.soak_cache.conversations import Ask, Beginnings, Conversation
from tests.support.teacher import Answer

TURN_SECONDS = 0.1
MOST_TURNS = 500_000
"""A leader that still has something to do after so many has lost count."""


@contextlib.contextmanager
def leading(spec: EngineSpec, publish: Any) -> Iterator[Leader]:
    """A leader as the engine's process makes it, with its group; no socket, and no grammars."""
    service = SimpleNamespace(publish=publish, leave=lambda reason: None)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(mock.patch.object(process, "Grammars"))
        engine = Engine(spec)
        process._start(engine, service, cleanup)  # type: ignore[arg-type]
        assert engine.group
        assert engine.leader
        with engine.group.followers.naming_the_lost():
            yield engine.leader


@contextlib.contextmanager
def on_a_small_scale() -> Iterator[None]:
    """A leader that counts memory by a few tokens, and waits for others to save a few: what happens with long
    conversations happens with short ones.
    """
    with (
        mock.patch.object(room, "STEP", 16),
        mock.patch.object(sequences, "HEADROOM", 8),
        mock.patch.object(reuse, "WORTH_WAITING", 16),
    ):
        yield


@dataclass
class Findings:
    requests: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    could_be_cached: int = 0
    """Tokens of prompts that somebody had sent before, in the same scope."""
    operations: dict[str, int] = field(default_factory=dict)
    preempted: int = 0
    finishes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Open:
    """A request that is on its way."""

    ask: Ask
    request: Request
    speaker: int
    due: int
    submitted: int | None = None
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: Progress | None = None

    def cancel_is_due(self, turn: int) -> bool:
        if self.cancelled or self.end or self.submitted is None:
            return False
        tokens, turns = self.ask.cancel_after_tokens, self.ask.cancel_after_turns
        return (tokens is not None and len(self.tokens) >= tokens) or (
            turns is not None and turn - self.submitted >= turns
        )

    @property
    def answer(self) -> Answer:
        assert self.end
        assert self.end.finish
        return Answer(self.request, tuple(self.tokens), self.end.finish, tuple(self.logprobs))


class Table:
    """Several conversations at a time with one leader."""

    def __init__(self, at_once: int) -> None:
        self.findings = Findings()
        self.answers: list[tuple[int, Answer]] = []
        """With the number of the conversation that each belongs to."""
        self._at_once = at_once
        self._open: dict[str, Open] = {}
        self._beginnings = Beginnings()
        self._numbers = itertools.count(1)
        self._turn = 0

    def publish(self, news: list[Progress]) -> None:
        for progress in news:
            # Warming up is nobody's.
            if asked := self._open.get(progress.id):
                asked.tokens += progress.tokens
                asked.logprobs += [entry.logprob for entry in progress.logprobs]
                asked.end = progress if progress.finish else None

    def hold(self, leader: Leader, conversations: Iterable[Conversation]) -> None:
        """A conversation begins when there is place for it, in the order in which they come."""
        self._watch(leader)
        coming = enumerate(conversations)
        talking: dict[int, Conversation] = {}
        started = time.monotonic()
        while True:
            for number, speaker in itertools.islice(coming, self._at_once - len(talking)):
                talking[number] = speaker
                self._listen(number, talking, None)
            if not talking:
                break
            self._act(leader)
            for number in list(talking):
                own = [asked for asked in self._open.values() if asked.speaker == number]
                if all(asked.end for asked in own):
                    self._listen(number, talking, own)
        while not leader.idle:
            self._act(leader)
        self.findings.preempted = leader.scheduler.preempted
        self.findings.seconds += time.monotonic() - started

    def _listen(self, number: int, talking: dict[int, Conversation], ended: list[Open] | None) -> None:
        """What a conversation asks next, once it has heard all answers to what it asked before."""
        for asked in ended or ():
            self._close(asked)
        try:
            speaker = talking[number]
            asks = next(speaker) if ended is None else speaker.send([asked.answer for asked in ended])
        except StopIteration:
            del talking[number]
            return
        for ask in asks:
            name = f"1:{next(self._numbers)}"
            request = replace(ask.request, id=name)
            self._open[name] = Open(ask, request, number, self._turn + ask.pause)

    def _act(self, leader: Leader) -> None:
        commands: list[Submit | Cancel] = []
        for asked in self._open.values():
            if asked.submitted is None and asked.due <= self._turn:
                asked.submitted = self._turn
                commands.append(Submit(asked.request))
                self._beginnings.add(asked.request, asked.request.prompt)
            elif asked.cancel_is_due(self._turn):
                asked.cancelled = True
                commands.append(Cancel(asked.request.id))
        for command in commands:
            leader.post(command)
        if commands:
            leader._take_commands()
        leader.turn()
        self._turn += 1
        if self._turn > MOST_TURNS:
            raise RuntimeError(f"the leader is not done after {MOST_TURNS} turns")

    def _close(self, asked: Open) -> None:
        del self._open[asked.request.id]
        answer, found = asked.answer, self.findings
        found.requests += 1
        found.tokens += len(answer.tokens)
        found.finishes[answer.finish] = found.finishes.get(answer.finish, 0) + 1
        timing = asked.end.timing if asked.end else None
        if fault := outcome_fault(asked, answer, timing) or self._cached_fault(asked, timing):
            found.faults.append(f"conversation {asked.speaker}, request {asked.request.id}: {fault}")
        self._beginnings.add(asked.request, answer.read)
        self.answers.append((asked.speaker, answer))

    def _cached_fault(self, asked: Open, timing: Timing | None) -> str | None:
        request = asked.request
        if timing is None:
            return None
        possible = self._beginnings.of_others(request)
        self.findings.prompt_tokens += len(request.prompt)
        self.findings.cached_tokens += timing.cached_tokens
        self.findings.could_be_cached += min(possible, len(request.prompt) - 1)
        if timing.cached_tokens > possible:
            return f"{timing.cached_tokens} tokens were cached, and only {possible} of its prompt had been sent before"
        return None

    def _watch(self, leader: Leader) -> None:
        """Count what the leader has the ranks do; its time is counted in turns, so that nothing depends on ours."""
        leader.scheduler._clock = leader.scheduler.prefixes.clock = lambda: self._turn * TURN_SECONDS
        counts: Counter[str] = Counter()
        next_step = leader.scheduler.next_step

        def counted() -> Step | None:
            step = next_step()
            counts.update(type(operation).__name__.lower() for operation in (step.operations if step else ()))
            self.findings.operations = dict(counts)
            return step

        leader.scheduler.next_step = counted  # type: ignore[method-assign]


def outcome_fault(asked: Open, answer: Answer, timing: Timing | None) -> str | None:
    """What is wrong with how a request ended, whatever its tokens are."""
    request = asked.request
    match answer.finish:
        case Finish.LENGTH if len(answer.output) == request.max_tokens:
            pass
        case Finish.STOP if request.stop_tokens and len(answer.output) < request.max_tokens:
            pass
        case Finish.CANCELLED if asked.cancelled and len(answer.output) <= request.max_tokens:
            pass
        case finish:
            error = asked.end.error if asked.end else ""
            return f"ended by {finish} after {len(answer.output)} of {request.max_tokens} tokens: {error}"
    if request.logprobs is not None and len(answer.logprobs) != len(answer.tokens):
        return f"{len(answer.tokens)} tokens came with {len(answer.logprobs)} log probabilities"
    if timing and timing.prompt_tokens != len(request.prompt):
        return f"a prompt of {len(request.prompt)} tokens was counted as {timing.prompt_tokens}"
    return None
