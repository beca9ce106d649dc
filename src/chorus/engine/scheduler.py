"""Decides which sequences advance next. Holds no tensor and imports no MLX: steps in, tokens out.

Between two decode forwards of a stream at most one budget of prompt tokens is fed, so a long prompt never stalls it.
Prompts that begin at the same time begin together: a small forward costs about as much for eight sequences as for one.
Over the stages of a pipeline the streams decode in several lanes: while one stage computes for one lane, the next
stage computes for another.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from chorus.messages.engine import Finish, Progress, Request, Timing, TokenLogprobs
from chorus.messages.rank import Drop, Feed, Operation, Step
from chorus.text.grammar.client import Constraint

CATCH_UP = 4
"""A prompt that lacks no more than this many tokens joins the batch and is fed them there, one with each decode."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    context: int
    vocabulary: int = 0
    """Token ids lie below this; 0: not known, not checked."""
    cache_tokens: int | None = None
    """How many tokens of keys and values there is memory for, as a rectangle: sequences times the longest."""
    max_batch: int = 32
    max_queue: int = 256
    prefill_chunk: int = 512
    lookahead: bool = True
    """Whether a decode forward may be sent before the tokens of the one before it are known."""
    lanes: int = 1
    """Into how many batches the streams are divided. Only one decode of a lane is under way without look-ahead."""


def within_memory(limits: SchedulerLimits, cache_tokens: int | None) -> SchedulerLimits:
    """The limits of an engine that has memory for so many tokens: a longer context would only be promised, and every
    request that does not say how long its answer may be asks for all of it.
    """
    context = limits.context if cache_tokens is None else min(limits.context, cache_tokens)
    return replace(limits, context=context, cache_tokens=cache_tokens)


@dataclass(slots=True)
class Sequence:
    number: int
    request: Request
    arrived: float
    constraint: Constraint | None = None
    """Which tokens its grammar allows next; closed when it ends."""
    fed: int = 0
    """Prompt tokens handed out in steps so far."""
    expected: int = 0
    """Tokens that steps under way will bring."""
    output: list[int] = field(default_factory=list)
    first_forward: float | None = None
    first_token: float | None = None

    @property
    def prompt_left(self) -> int:
        return len(self.request.prompt) - self.fed

    @property
    def may_decode(self) -> bool:
        return len(self.output) + self.expected < self.request.max_tokens

    @property
    def position(self) -> int:
        """Where the next token to be sampled will stand, counted from the first prompt token."""
        return len(self.request.prompt) + len(self.output)

    def next_tokens(self, size: int) -> tuple[int, ...]:
        """The next part of the prompt, handed out for a step."""
        tokens = self.request.prompt[self.fed : self.fed + size]
        self.fed += size
        return tokens

    def timing(self, now: float, stopped: bool) -> Timing:
        began = self.first_forward if self.first_forward is not None else now
        first = self.first_token if self.first_token is not None else now
        return Timing(
            queue_seconds=began - self.arrived,
            prompt_seconds=first - began,
            generation_seconds=now - first,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=0,
            generated_tokens=len(self.output) + stopped,
        )


@dataclass(slots=True)
class Lane:
    """Streams that decode together."""

    number: int
    sequences: list[Sequence] = field(default_factory=list)
    under_way: int = 0
    """Decodes that were sent and are not home yet."""
    last_decode: int = 0
    """The number of the step that sent the last one."""
    prefilled: int = 0
    """Prompt tokens fed since then."""

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.may_decode]

    def ready(self, lookahead: bool) -> list[Sequence]:
        """Who can decode now."""
        if lookahead:
            # One is computed while the next waits for its token: more would only be thrown away when a stream ends.
            return self.running if self.under_way < 2 else []
        # Whoever got its first token meanwhile joins at the next decode, and nobody before those who stand in front of
        # it, since rows join in this order.
        return [] if self.under_way else list(takewhile(lambda sequence: not sequence.expected, self.running))


class Scheduler:
    def __init__(self, limits: SchedulerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._filling: list[Sequence] = []
        self._lanes: list[Lane] = []
        self._by_request: dict[str, Sequence] = {}
        self._by_number: dict[int, Sequence] = {}
        self._operations: list[Operation] = []
        self._next_sequence = 1
        self._next_step = 1
        self._oldest_first = True

    # What the front ends ask.

    def submit(self, request: Request, constraint: Constraint | None = None) -> Progress | None:
        """Queue a request; an answer at once means that it was not taken."""
        if refusal := self._refusal(request):
            if constraint:
                constraint.close()
            return refusal
        sequence = Sequence(self._next_sequence, request, self._clock(), constraint)
        self._next_sequence += 1
        self._by_request[request.id] = sequence
        self._waiting.append(sequence)
        return None

    def cancel(self, request_id: str) -> Progress | None:
        sequence = self._by_request.get(request_id)
        return self._end(sequence, Finish.CANCELLED) if sequence else None

    def fail(self, numbers: tuple[int, ...], error: str) -> list[Progress]:
        return [self._end(s, Finish.FAILED, error=error) for n in numbers if (s := self._by_number.get(n))]

    def reject(self, number: int, error: str, field: str) -> list[Progress]:
        """The request itself turned out to be one that cannot be served."""
        sequence = self._by_number.get(number)
        return [self._end(sequence, Finish.REJECTED, error=error)._replace(field=field)] if sequence else []

    def fail_all(self, error: str) -> list[Progress]:
        return [self._end(sequence, Finish.FAILED, error=error) for sequence in list(self._by_request.values())]

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._admitted)

    @property
    def idle(self) -> bool:
        return not self._by_request and not self._operations

    def sequence(self, number: int) -> Sequence | None:
        return self._by_number.get(number)

    # What the leader does: send the next step, bring back its tokens.

    def next_step(self) -> Step | None:
        self._admit()
        if chunk := self._next_chunk():
            return self._prefill(*chunk)
        ready = [(lane, sequences) for lane in self._lanes if (sequences := lane.ready(self.limits.lookahead))]
        if ready:
            return self._decode(*min(ready, key=lambda pair: pair[0].last_decode))
        if self._operations:
            return self._step(())
        return None

    def finish(
        self, step: Step, tokens: Mapping[int, int], logprobs: Mapping[int, TokenLogprobs] | None = None
    ) -> list[Progress]:
        """Take the tokens a step brought, by sequence number."""
        if step.decode:
            self._lanes[step.lane].under_way -= 1
        news = []
        for number, token in tokens.items():
            if sequence := self._by_number.get(number):
                news.append(self._take(sequence, token, (logprobs or {}).get(number)))
        return news

    def finish_embedding(self, number: int, embedding: tuple[float, ...]) -> list[Progress]:
        sequence = self._by_number.get(number)
        return [self._end(sequence, Finish.STOP)._replace(embedding=embedding)] if sequence else []

    @property
    def _admitted(self) -> list[Sequence]:
        return [*self._filling, *(sequence for lane in self._lanes for sequence in lane.sequences)]

    def _refusal(self, request: Request) -> Progress | None:
        def refuse(finish: Finish, why: str) -> Progress:
            return Progress(request.id, finish=finish, error=why)

        if request.id in self._by_request:
            return refuse(Finish.REJECTED, f"request id {request.id} is already running")
        if not request.prompt:
            return refuse(Finish.REJECTED, "the prompt has no tokens")
        if request.max_tokens < 1:
            return refuse(Finish.REJECTED, "max_tokens must be at least 1")
        if len(request.prompt) + request.max_tokens > self.limits.context:
            return refuse(
                Finish.REJECTED,
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} new ones exceed the context of "
                f"{self.limits.context} tokens",
            )
        if self.limits.cache_tokens is not None and request.longest > self.limits.cache_tokens:
            return refuse(
                Finish.REJECTED,
                f"{request.longest} tokens need more memory than is left for {self.limits.cache_tokens}: "
                "ask for fewer max_tokens",
            )
        if foreign := self._foreign_token(request):
            return refuse(Finish.REJECTED, f"token id {foreign} is not in the vocabulary of {self.limits.vocabulary}")
        if len(self._waiting) >= self.limits.max_queue:
            return refuse(Finish.OVERLOADED, f"the queue is full ({self.limits.max_queue} requests are waiting)")
        return None

    def _foreign_token(self, request: Request) -> int | None:
        highest = max((*request.prompt, *request.sampling.logit_bias))
        return highest if self.limits.vocabulary and highest >= self.limits.vocabulary else None

    def _admit(self) -> None:
        while self._waiting and self.running < self.limits.max_batch:
            sequence = self._next_in_line()
            if not self._has_room(sequence):
                return
            self._waiting.remove(sequence)
            self._by_number[sequence.number] = sequence
            self._filling.append(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """A batch's keys and values are a rectangle: a long newcomer widens everybody's row."""
        if self.limits.cache_tokens is None:
            return True
        together = [s.request.longest for s in (*self._admitted, sequence)]
        return len(together) * max(together) <= self.limits.cache_tokens

    def _next_in_line(self) -> Sequence:
        """The oldest request of the owner who has the fewest running."""
        served = Counter(sequence.request.owner for sequence in self._admitted)
        return min(self._waiting, key=lambda sequence: (served[sequence.request.owner], sequence.number))

    def _next_chunk(self) -> tuple[list[Sequence], int] | None:
        filling = [sequence for sequence in self._filling if sequence.prompt_left]
        if not filling:
            return None
        # The oldest prompt and the one with least left take turns: neither long nor short ones starve.
        sequence = filling[0] if self._oldest_first else min(filling, key=lambda s: (s.prompt_left, s.number))
        size = min(sequence.prompt_left, self.limits.prefill_chunk)
        spent = max((lane.prefilled for lane in self._lanes if lane.running), default=0)
        if spent and spent + size > self.limits.prefill_chunk:
            return None
        budget = self.limits.prefill_chunk - spent
        return _beginning_together(sequence, size, filling, budget), size

    def _prefill(self, together: list[Sequence], size: int) -> Step:
        for lane in self._lanes:
            lane.prefilled += size * len(together)
        self._oldest_first = not self._oldest_first
        if together[0].request.pooling:
            # Nothing is decoded: the sequence ends when the step with its last tokens comes home.
            return self._step((self._prompt_feed(together[0], size),))
        feeds = tuple(self._prompt_feed(sequence, size) for sequence in together)
        for sequence in together:
            if sequence.prompt_left <= (CATCH_UP if len(together) > 1 else 0):
                self._filling.remove(sequence)
                self._lane_with_most_room().sequences.append(sequence)
        return self._step(feeds, logits=not all(feed.partial for feed in feeds))

    def _prompt_feed(self, sequence: Sequence, size: int) -> Feed:
        if sequence.first_forward is None:
            sequence.first_forward = self._clock()
        begins = not sequence.fed
        tokens = sequence.next_tokens(size)
        sequence.expected += not sequence.prompt_left
        return Feed(sequence.number, tokens, partial=bool(sequence.prompt_left), begins=begins)

    def _lane_with_most_room(self) -> Lane:
        self._lanes += [Lane(number) for number in range(len(self._lanes), self.limits.lanes)]
        return min(self._lanes[: self.limits.lanes], key=lambda lane: len(lane.sequences))

    def _decode(self, lane: Lane, ready: list[Sequence]) -> Step:
        feeds = tuple(map(self._decode_feed, ready))
        lane.under_way += 1
        lane.prefilled = 0
        lane.last_decode = self._next_step
        return self._step(feeds, decode=True, logits=not all(feed.partial for feed in feeds), lane=lane.number)

    def _decode_feed(self, sequence: Sequence) -> Feed:
        if sequence.prompt_left:
            return self._prompt_feed(sequence, 1)
        tokens = () if sequence.expected else (sequence.output[-1],)
        sequence.expected += 1
        return Feed(sequence.number, tokens)

    def _step(self, feeds: tuple[Feed, ...], *, decode: bool = False, logits: bool = False, lane: int = 0) -> Step:
        step = Step(self._next_step, tuple(self._operations), feeds, decode, logits, lane)
        self._next_step += 1
        self._operations.clear()
        return step

    def _take(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> Progress:
        sequence.expected -= 1
        if sequence.first_token is None:
            sequence.first_token = self._clock()
        if token in sequence.request.stop_tokens:
            return self._end(sequence, Finish.STOP)
        sequence.output.append(token)
        told = Progress(sequence.request.id, (token,), logprobs=(logprobs,) if logprobs else ())
        if len(sequence.output) < sequence.request.max_tokens:
            return told
        ended = self._end(sequence, Finish.LENGTH)
        return told._replace(finish=ended.finish, timing=ended.timing)

    def _end(self, sequence: Sequence, finish: Finish, *, error: str = "") -> Progress:
        del self._by_request[sequence.request.id]
        if self._by_number.pop(sequence.number, None) is None:
            self._waiting.remove(sequence)
        elif sequence in self._filling:
            self._filling.remove(sequence)
        else:
            next(lane for lane in self._lanes if sequence in lane.sequences).sequences.remove(sequence)
        if sequence.first_forward is not None:
            self._operations.append(Drop(sequence.number))
        if sequence.constraint:
            sequence.constraint.close()
        timing = sequence.timing(self._clock(), stopped=finish is Finish.STOP)
        return Progress(sequence.request.id, (), finish, error, timing)


def _beginning_together(first: Sequence, size: int, filling: list[Sequence], budget: int) -> list[Sequence]:
    """Who else has a new prompt of at least this size: equally long chunks are one rectangle, which nothing pads."""
    if first.fed or first.request.pooling:
        return [first]
    others = [s for s in filling if s is not first and not s.fed and not s.request.pooling and s.prompt_left >= size]
    return [first, *others[: max(0, budget // size - 1)]]
