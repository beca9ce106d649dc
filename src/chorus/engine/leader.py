"""The leader's loop: take commands, send the next step, bring back the tokens of the one before.

With look-ahead, forward n+1 is launched with token n still inside the graph; then token n is read, and only then the
sampling of token n+1 is built. So penalties and grammars see every earlier token, and the device never waits for us.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, cast

import mlx.core as mx

from chorus.engine.prefix.disk import FileList
from chorus.engine.prefix.index import PrefixIndex
from chorus.engine.ranks.followers import Follower
from chorus.engine.sampling import Draw, Mask, Sampler, Scores, score
from chorus.engine.scheduling.scheduler import Scheduler
from chorus.engine.scheduling.sequences import Sequence
from chorus.messages.engine import Pooling, Progress, Request, Sampling, TokenLogprobs
from chorus.messages.grammar import GrammarError
from chorus.messages.rank import Evict, Step, Store
from chorus.platform import faults
from chorus.platform.memory.freed_buffers import FreedBuffers
from chorus.platform.memory.metal import raise_if_gpu_lost
from chorus.platform.process import beats
from chorus.platform.process.losses import Loss, cause_of
from chorus.platform.process.output import LogFile
from chorus.rank.graph_tokens import GraphTokens
from chorus.rank.runner import Runner
from chorus.telemetry.metrics.declared import ITERATION_TOKENS
from chorus.telemetry.metrics.histogram import Histogram
from chorus.telemetry.phases import COMPUTE, IDLE, SAMPLING, SCHEDULE, clock
from chorus.text.grammar.client import Constraint

log = logging.getLogger("chorus.engine")

IDLE_SECONDS = 1.0
"""How long the loop waits for a command before it looks after the ranks, and gives back what nobody uses."""

NOBODY = Draw(Sampling(), 0)
"""What is drawn for a row that nobody wants the token of: it ended under way, or is not at its prompt's end."""


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request
    constraint: Constraint | None = None
    """The request's grammar, opened; it belongs to the request from now on."""


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Forget all that is stored; running requests have copies and go on."""

    done: Callable[[int, int], None]
    """Called from the leader's thread with how many entries were forgotten, and how many bytes they took."""


@dataclass(frozen=True, slots=True)
class StopLeader:
    """End the loop; what still runs is cancelled with this reason."""

    reason: str


Command = Submit | Cancel | ClearCache | StopLeader


class Followers(Protocol):
    """The other ranks of this model, as the leader sees them."""

    followers: tuple[Follower, ...]
    stages: int
    depth: int
    """How many steps may be on their way through the stages at once."""
    lookahead: bool
    """Whether the first layers find sampled tokens in the graph; else a step must bring the tokens themselves."""
    farewell: Callable[[str], None]
    """Called with the reason before this process is left in the middle of a collective."""

    @property
    def sum_seconds(self) -> float | None:
        """What a small sum over the ranks took when they met; None where nothing is summed."""
        ...

    def send(self, step: Step) -> None: ...
    def rest(self) -> None:
        """Tell them that there is nothing to do: what they wait for from now on is nobody's fault."""
        ...

    def receive(self, step: Step) -> list[mx.array] | None:
        """What the stage before ours computed for this step; None where ours is the first."""
        ...

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        """Hand sampled tokens to the other ranks inside the graph, where they feed themselves."""
        ...

    def check(self) -> None:
        """Raise RankLost when a rank has failed."""
        ...

    def waiting(self, step: Step, over: bool = False) -> AbstractContextManager[None]:
        """Around whatever may wait for another rank; `over`: for the last time for this step."""
        ...

    def naming_the_lost(self) -> AbstractContextManager[None]:
        """Around whole turns: what goes wrong because a rank is gone is raised as RankLost."""
        ...


class NoFollowers:
    """The only rank of its model. Nobody else can be out of step, so that a failed step fails its requests alone."""

    followers: tuple[Follower, ...] = ()
    stages = depth = 1
    lookahead = True

    sum_seconds = None

    def __init__(self) -> None:
        self.farewell: Callable[[str], None] = lambda reason: None

    def send(self, step: Step) -> None:
        pass

    def rest(self) -> None:
        pass

    def receive(self, step: Step) -> list[mx.array] | None:
        return None

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        return tokens

    def check(self) -> None:
        pass

    def waiting(self, step: Step, over: bool = False) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def naming_the_lost(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass(slots=True)
class Flight:
    step: Step
    outputs: list[mx.array]
    """Sampled tokens (one row per feed), or what else must be computed for the step to be over."""
    sampled: bool
    scores: Scores | None = None
    embedded: bool = False
    """The outputs are the pooled hidden states of a whole prompt."""


class Leader:
    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        publish: Callable[[list[Progress]], None],
        followers: Followers | None = None,
        step_log: LogFile | None = None,
        file_list: FileList | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.sent_step = self.finished_step = 0
        self.step_tokens = Histogram(ITERATION_TOKENS)
        self._runner = runner
        self._publish = publish
        self._followers = followers or NoFollowers()
        self._alone = not self._followers.followers
        self._step_log = step_log
        self.file_list = file_list
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._sent: deque[Step] = deque()
        self._flight: Flight | None = None
        self._graph_tokens = GraphTokens()
        self._newest: tuple[tuple[int, ...], mx.array] | None = None
        """The sequences of the last forward that had logits, and these."""
        self._kept_logits: dict[int, mx.array] = {}
        """By the number of the segment whose tokens they are behind."""
        self._pooled: dict[int, mx.array] = {}
        self._unfinished: dict[int, Step] = {}
        """Steps that were sent and are not over."""
        self._news: list[Progress] = []
        self._rests = False
        """The followers know that there is nothing to do."""
        self._freed_buffers = FreedBuffers(mx)
        self._sampler = Sampler()

    def post(self, command: Command) -> None:
        """The only call that is made from other threads."""
        self._inbox.put(command)

    def run(self) -> str:
        """Serve until stopped; returns the reason."""
        try:
            while not (stop := self._take_commands()):
                self.turn()
            self._news += self.scheduler.cancel_all(stop.reason)
            return stop.reason
        finally:
            # Also when a rank was lost: who has ended already must hear of it.
            self._tell()
            self._write_list()

    def renew(self, runner: Runner, followers: Followers, prefixes: PrefixIndex, loss: Loss) -> list[int]:
        """Go on with a group whose ranks hold nothing: everybody who ran begins again behind the tokens that it has.
        Answers how many these are, of each.
        """
        self._runner, self._followers = runner, followers
        self._sent.clear()
        self._flight = self._newest = None
        self._graph_tokens = GraphTokens()
        self._kept_logits.clear()
        self._pooled.clear()
        unfinished = {number for step in self._unfinished.values() for number in step.sequences}
        self._unfinished.clear()
        self._news += self.scheduler.start_over(prefixes, unfinished, loss)
        return self.scheduler.begun

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and self._flight is None and not self._sent

    def turn(self) -> None:
        """One round: at most one forward launched here, at most one brought home.

        News goes out when the ranks have something to do again: nobody computes while we write it down.
        """
        if self._flight and not self.scheduler.limits.lookahead:
            self._bring_home()
        self._send_steps()
        self._tell()
        launched = self._launch(self._sent.popleft()) if self._sent else None
        if self._flight:
            self._bring_home()
        if launched:
            self._flight = self._sample(*launched)
        self._tell()

    def _tell(self) -> None:
        if self._news:
            faults.at("tell", 0, self.finished_step)
            news, self._news = self._news, []
            self._publish(news)

    def _take_commands(self) -> StopLeader | None:
        """Everything that has come in; waits only when there is nothing else to do."""
        try:
            command = self._next_command()
            while True:
                match command:
                    case StopLeader():
                        return command
                    case Submit(request, constraint):
                        refused = self.scheduler.submit(request, constraint)
                        self._news.append(refused or Progress(request.id, accepted=True))
                    case Cancel(request_id):
                        if ended := self.scheduler.cancel(request_id):
                            self._news.append(ended)
                    case ClearCache(done):
                        done(*self.scheduler.clear_cache())
                command = self._inbox.get_nowait()
        except queue.Empty:
            pass
        self._hear_of_files()
        self._followers.check()
        return None

    def _hear_of_files(self) -> None:
        """What became of files that ranks were to write or read."""
        if self.scheduler.prefixes.disk is None:
            return
        news = self._runner.disk.news()
        self.scheduler.files_done(0, news.saved, news.restored, news.failed)
        for follower in self._followers.followers:
            with contextlib.suppress(queue.Empty):
                while told := follower.disk_news.get_nowait():
                    self.scheduler.files_done(follower.rank, told.saved, told.restored, told.failed)

    def _write_list(self) -> None:
        if self.file_list and self.scheduler.prefixes.disk:
            self.file_list.write(self.scheduler.prefixes.disk)

    def _next_command(self) -> Command:
        clock.enter(SCHEDULE)
        if not self.idle:
            return self._inbox.get_nowait()
        if not self._rests:
            self._followers.rest()
            self._rests = True
        clock.enter(IDLE)
        try:
            return self._inbox.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            self._freed_buffers.give_back()
            self._write_list()
            raise
        finally:
            clock.enter(SCHEDULE)

    def _send_steps(self) -> None:
        while len(self._sent) < self._followers.depth and (step := self.scheduler.next_step()):
            self._unfinished[step.number] = step
            self._rests = False
            if clock.recording:
                clock.describe_step(step.number, _kind(step), len(step.feeds), step.tokens)
            self._followers.send(step)
            self._sent.append(step)
            self.sent_step = step.number
            faults.at("sent", 0, step.number)
            self._write_log(step)
        if self.scheduler.begun_news:
            self._news += self.scheduler.begun_news
            self.scheduler.begun_news.clear()

    def _launch(self, step: Step) -> tuple[Step, list[mx.array]] | None:
        self._freed_buffers.used()
        clock.enter(COMPUTE)
        clock.step = step.number
        try:
            faults.at("forward", 0, step.number, (token for feed in step.feeds for token in feed.tokens))
            self._keep_logits(step)
            tokens, received = self._graph_tokens.of(step), self._followers.receive(step)
            # What is stored is computed first, and that may need a rank that is gone.
            with self._followers.waiting(step):
                outputs = self._runner.run(step, tokens, received)
            if step.recalls:
                outputs = [mx.stack([self._kept_logits[feed.recalled] for feed in step.feeds])]
            self._newest = (step.sequences, outputs[0]) if step.logits else None
            return step, outputs
        except Exception as error:
            raise_if_gpu_lost(error)
            if not self._alone:
                raise
            self._fail(step, error)
            return None
        finally:
            clock.enter(SCHEDULE)
            # Not before: a step may begin with what it lets go of for somebody else.
            for operation in step.operations:
                if isinstance(operation, Evict):
                    self._kept_logits.pop(operation.segment, None)

    def _keep_logits(self, step: Step) -> None:
        """Of prompts that were just read whole, for whoever sends the same once more."""
        for operation in step.operations:
            if isinstance(operation, Store) and operation.logits:
                assert self._newest is not None, "a prompt's end is stored right behind the step that reached it"
                sequences, logits = self._newest
                kept = mx.contiguous(logits[sequences.index(operation.sequence)])
                mx.async_eval(kept)
                self._kept_logits[operation.segment] = kept

    def _sample(self, step: Step, outputs: list[mx.array]) -> Flight:
        if not step.logits:
            return self._pool(step, outputs) or Flight(step, outputs, sampled=False)
        clock.enter(SAMPLING)
        clock.step = step.number
        faults.at("sample", 0, step.number)
        since, find = time.monotonic(), self.scheduler.sequence
        rows = [None if feed.partial else find(feed.sequence) for feed in step.feeds]
        tokens = self._sampler.sample(outputs[0], [self._draw(sequence, since) for sequence in rows])
        tokens = self._followers.share(tokens, outputs)
        scores = self._score(rows, outputs[0], tokens)
        mx.async_eval(tokens, scores.arrays if scores else [])
        self._graph_tokens.note(step, tokens)
        clock.enter(SCHEDULE)
        return Flight(step, [tokens], sampled=True, scores=scores)

    def _pool(self, step: Step, outputs: list[mx.array]) -> Flight | None:
        """Hidden states of a prompt that is to be embedded, chunk by chunk."""
        sequence = self.scheduler.sequence(step.sequences[0]) if step.feeds else None
        if sequence is None or sequence.request.pooling is None:
            return None
        norm, number = self._runner.stage.final_norm, sequence.number
        if norm is None:
            self._news += self.scheduler.fail((number,), "this architecture has no final norm that we know of")
            return None
        hidden = norm(outputs[0])[0].astype(mx.float32)
        if sequence.request.pooling is Pooling.LAST:
            pooled = hidden[-1]
        else:
            pooled = hidden.sum(axis=0) / len(sequence.request.prompt) + self._pooled.get(number, 0.0)
        mx.async_eval(pooled)
        # A request may end between two of its chunks: nothing of those that did is kept.
        self._pooled = {n: sum_ for n, sum_ in self._pooled.items() if self.scheduler.sequence(n)} | {number: pooled}
        return Flight(step, [pooled], sampled=False, embedded=sequence.prompt_left == 0)

    def _draw(self, sequence: Sequence | None, since: float) -> Draw:
        if sequence is None:
            return NOBODY
        request = sequence.request
        mask = self._mask(sequence, since) if sequence.constraint else None
        return Draw(request.sampling, sequence.position, request.prompt, sequence.output, mask)

    def _mask(self, sequence: Sequence, since: float) -> Mask | None:
        assert sequence.constraint is not None
        try:
            return sequence.constraint.mask(since)
        except GrammarError as error:
            self._news += self.scheduler.reject(sequence.number, error.told, error.field)
            return None

    @staticmethod
    def _score(rows: list[Sequence | None], logits: mx.array, tokens: mx.array) -> Scores | None:
        wanted = [count for row in rows if row and (count := row.request.logprobs) is not None]
        return score(logits, tokens, max(1, *wanted)) if wanted else None

    def _bring_home(self) -> None:
        flight, self._flight = self._flight, None
        assert flight is not None
        clock.enter(COMPUTE)
        clock.step = flight.step.number
        try:
            with self._followers.waiting(flight.step, over=True):
                mx.eval(flight.outputs, flight.scores.arrays if flight.scores else [])
        except Exception as error:
            raise_if_gpu_lost(error)
            if not self._alone:
                raise
            self._fail(flight.step, error)
            return
        finally:
            clock.enter(SCHEDULE)
        del self._unfinished[flight.step.number]
        sampled = cast(list[int], flight.outputs[0].tolist()) if flight.sampled else ()
        rows = zip(flight.step.feeds, sampled, strict=False)
        tokens = {feed.sequence: token for feed, token in rows if not feed.partial}
        self.finished_step = flight.step.number
        beats.finished(flight.step.number)
        # Every row of a decode is fed one token: nobody has to look at each.
        if fed := len(flight.step.feeds) if flight.step.decode else flight.step.tokens:
            self.step_tokens.observe(fed)
        if flight.embedded:
            values = tuple(cast(list[float], flight.outputs[0].tolist()))
            self._news += self.scheduler.finish_embedding(flight.step.sequences[0], values)
            return
        logprobs = self._read_scores(flight)
        self._advance_constraints(tokens)
        self._news += self.scheduler.finish(flight.step, tokens, logprobs)

    def _read_scores(self, flight: Flight) -> dict[int, TokenLogprobs]:
        if flight.scores is None:
            return {}
        rows = enumerate(map(self.scheduler.sequence, flight.step.sequences))
        asked = {row: count for row, s in rows if s and (count := s.request.logprobs) is not None}
        return {flight.step.feeds[row].sequence: told for row, told in flight.scores.rows(asked).items()}

    def _advance_constraints(self, tokens: dict[int, int]) -> None:
        for number, token in tokens.items():
            sequence = self.scheduler.sequence(number)
            if sequence and sequence.constraint:
                sequence.constraint.advance(token)

    def _fail(self, step: Step, error: Exception) -> None:
        log.exception("step %d failed", step.number)
        self._unfinished.pop(step.number, None)
        self.scheduler.shrink_after(Loss(cause_of(error), str(error)))
        self._news += self.scheduler.step_failed(step, f"the engine failed this request: {error}")

    def _write_log(self, step: Step) -> None:
        if self._step_log:
            entry = {"step": step.number, "kind": _kind(step), "sequences": step.sequences, "tokens": step.tokens}
            self._step_log.write(f"{json.dumps(entry | {'time': time.time()})}\n".encode())


def _kind(step: Step) -> str:
    return "decode" if step.decode else "prefill" if step.feeds else "operations"
