"""Decides which sequences advance next. Holds no tensor and imports no MLX: steps in, tokens out.

Between two decode forwards of a stream at most one budget of prompt tokens is fed, so a long prompt never stalls it:
so many tokens, or as many as were seen to take no longer than streams may pause.
Prompts that begin at the same time begin together: a small forward costs about as much for eight sequences as for one.
Over the stages of a pipeline the streams decode in several lanes: while one stage computes for one lane, the next
stage computes for another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from chorus.engine.prefix.index import PrefixIndex
from chorus.engine.room import UNLIMITED, Room, Use, rectangle, rounded
from chorus.engine.scheduling.chunks import USUAL_CHUNKS, ChunkLimits, Chunks, FixedChunks, MeasuredChunks, StepCosts
from chorus.engine.scheduling.reuse import Reuse
from chorus.engine.scheduling.sequences import Lane, Sequence, beginning_together
from chorus.engine.scheduling.waiting import Waiting
from chorus.messages.engine import CacheFacts, Finish, Progress, Request, TokenLogprobs
from chorus.messages.poison import Proved
from chorus.messages.rank import Drop, Feed, Keeping, Leave, Operation, Step, Store
from chorus.platform.process.losses import Cause, Loss
from chorus.text.grammar.client import Constraint

NOTHING_KEPT = Keeping(refusal="it is switched off")

CATCH_UP = 4
"""A prompt that lacks no more than this many tokens joins the batch and is fed them there, one with each decode."""


MORE_LANES = 2
"""Batches beside the usual ones, for sequences that are so long that they would widen everybody's row."""

UNEVEN = 2
"""A stream moves where a lane has so many more than another: then both have as many, or one more."""
WORTH_MOVING = 8
"""Tokens that it may still draw: what both lanes hold is copied."""

WASTE = 1 / 8
"""Of all memory for caches: a sequence that would make others waste more than this gets a batch of its own."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    context: int
    vocabulary: int = 0
    """Token ids lie below this; 0: not known, not checked."""
    room: Room = UNLIMITED
    """What there is memory for."""
    max_batch: int = 32
    max_queue: int = 256
    prefill_chunk: int | None = 512
    """Prompt tokens in one forward, and between two of a stream; None: by what they take, within `chunks`."""
    chunks: ChunkLimits = USUAL_CHUNKS
    lookahead: bool = True
    """Whether a decode forward may be sent before the tokens of the one before it are known."""
    lanes: int = 1
    """Into how many batches the streams are divided. Only one decode of a lane is under way without look-ahead."""


def within_memory(limits: SchedulerLimits, room: Room) -> SchedulerLimits:
    """The limits of an engine that has so much memory: a longer context would only be promised, and every request that
    does not say how long its answer may be asks for all of it.
    """
    context = limits.context if room.tokens is None else min(limits.context, room.tokens)
    return replace(limits, context=context, room=room)


class Scheduler:
    def __init__(
        self,
        limits: SchedulerLimits,
        clock: Callable[[], float] = time.monotonic,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        """With `prefixes`, what was computed is kept for requests that begin alike."""
        self.limits = limits
        self.reuse = Reuse(prefixes or PrefixIndex(NOTHING_KEPT), self, clock)
        self.costs = StepCosts()
        self.preempted = 0
        """How often a stream had to make room and went on later."""
        self.begun_news: list[Progress] = []
        """Of requests that have begun with a step that was made, until somebody tells it."""
        self._clock = clock
        self._waiting = Waiting()
        self.filling: list[Sequence] = []
        self._lanes: list[Lane] = []
        self._by_request: dict[str, Sequence] = {}
        self._by_number: dict[int, Sequence] = {}
        self._operations: list[Operation] = []
        self._recalled: list[tuple[Sequence, int]] = []
        """Whose whole prompt was found stored, with its logits: nothing is fed before their first token."""
        self._afterwards: list[Operation] = []
        """Operations on what the step that is being made will have computed."""
        self._suspects: list[Sequence] = []
        self._proved = Proved(clock)
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
        sequence = Sequence(self._next_sequence, request, self._clock(), constraint, list(request.answered))
        sequence.filling = (*request.prompt, *request.answered)
        self._next_sequence += 1
        self._by_request[request.id] = sequence
        self._waiting.add(sequence)
        return None

    def cancel(self, request_id: str) -> Progress | None:
        sequence = self._by_request.get(request_id)
        return self._end(sequence, Finish.CANCELLED) if sequence else None

    def fail(self, numbers: tuple[int, ...], error: str) -> list[Progress]:
        self._forget(numbers)
        return [self._end(s, Finish.FAILED, error=error) for n in numbers if (s := self._by_number.get(n))]

    def step_failed(self, step: Step, error: str) -> list[Progress]:
        """Nobody but those who were in it has lost anything. Who was alone in it is to blame; the others go on, one at
        a time, from the tokens they have.
        """
        self.finish(step, {})
        if len(step.feeds) == 1:
            return self.fail(step.sequences, error)
        self._forget(step.sequences)
        for feed in step.feeds:
            if sequence := self._by_number.get(feed.sequence):
                sequence.expected -= not feed.partial
                sequence.spoiled = sequence.expected
                if sequence not in self._waiting:
                    self._leave(sequence)
                    self._waiting.add(sequence)
                self._suspect(sequence)
        return []

    def start_over(self, prefixes: PrefixIndex, unfinished: Iterable[int], loss: Loss) -> list[Progress]:
        """No rank holds anything any more. Whoever ran goes on from the tokens it has, before those who wait, and what
        is kept from now on is kept in this index. `unfinished` were in steps under way.
        """
        news = self._blame(unfinished, loss) if loss.cause is not Cause.OUTSIDE else []
        self._operations, self._afterwards = [], []
        self.costs.lose()
        ran = self._admitted
        self.filling.clear()
        self._lanes.clear()
        self._recalled.clear()
        for sequence in ran:
            self._waiting.add(sequence)
        for sequence in self._waiting:
            sequence.lose()
        prefixes.counts = self.prefixes.counts
        if prefixes.disk and self.prefixes.disk:
            prefixes.disk.restored_tokens = self.prefixes.disk.restored_tokens
        self.reuse.index = prefixes
        return news + [Progress(sequence.request.id, resumed=True) for sequence in ran if not sequence.request.pooling]

    def shrink_after(self, loss: Loss) -> None:
        """Caches take less from now on, where there was too little memory."""
        room = self.limits.room.after(loss)
        self.limits, self.prefixes.room = within_memory(self.limits, room), room

    def _blame(self, unfinished: Iterable[int], loss: Loss) -> list[Progress]:
        """Whose token count has not moved since the last loss is suspected; who was suspected already and ran alone is
        to blame.
        """
        news = []
        for sequence in filter(None, map(self._by_number.get, sorted(unfinished))):
            if sequence.suspected:
                reason = f"this request has ended a rank each time it was tried: {loss.told}"
                self._proved.remember(sequence.request, reason)
                news.append(self._end(sequence, Finish.FAILED, error=reason))
            elif sequence.lost_at == len(sequence.output):
                self._suspect(sequence)
            sequence.lost_at = len(sequence.output)
        return news

    def _suspect(self, sequence: Sequence) -> None:
        if not sequence.suspected:
            sequence.suspected = True
            self._suspects.append(sequence)

    def _acquit(self, sequence: Sequence) -> None:
        sequence.suspected = False
        self._suspects.remove(sequence)

    def reject(self, number: int, error: str, field: str) -> list[Progress]:
        """The request itself turned out to be one that cannot be served."""
        sequence = self._by_number.get(number)
        return [self._end(sequence, Finish.REJECTED, error=error)._replace(field=field)] if sequence else []

    def cancel_all(self, why: str) -> list[Progress]:
        """This engine ends, and whoever asked may ask the next one."""
        return [self._end(sequence, Finish.CANCELLED, error=why) for sequence in list(self._by_request.values())]

    def _forget(self, numbers: tuple[int, ...]) -> None:
        """What was to be taken from their caches is not there, or half of it."""
        self._operations = [op for op in self._operations if not (isinstance(op, Store) and op.sequence in numbers)]
        self._operations += self.prefixes.forget(numbers)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._admitted)

    @property
    def begun(self) -> list[int]:
        """Of each request that has begun and waits to go on: how many tokens it has, with its prompt."""
        return [sequence.position for sequence in self._waiting if sequence.number in self._by_number]

    @property
    def idle(self) -> bool:
        return not self._by_request and not self._operations

    @property
    def prefixes(self) -> PrefixIndex:
        return self.reuse.index

    def keep(self, prefixes: PrefixIndex) -> None:
        """From now on what was computed is kept in this index."""
        self.reuse = Reuse(prefixes, self, self._clock)

    def clear_cache(self) -> tuple[int, int]:
        """Forget all that is stored: how many entries, and how many bytes on the rank that holds most of it."""
        entries, size = self.prefixes.entries, self._bytes(self.prefixes.use)
        self._operations += self.reuse.clear()
        return entries, size

    def cache_facts(self) -> CacheFacts:
        index, live = self.prefixes, self.live()
        tightest = self.limits.room.tightest(index.use + live)
        return CacheFacts(
            off=self.reuse.off,
            entries=index.entries,
            tokens=index.use.tokens,
            bytes=tightest.bytes(index.use) if tightest else 0,
            budget_bytes=tightest.budget if tightest else 0,
            live_bytes=tightest.bytes(live) if tightest else 0,
            prompt_tokens=index.counts.prompt_tokens,
            cached_tokens=index.counts.cached_tokens,
            evicted_tokens=index.counts.evicted_tokens,
            preempted=self.preempted,
            restored_tokens=index.disk.restored_tokens if index.disk else 0,
            conversations=self.reuse.conversations,
        )

    def _bytes(self, use: Use) -> int:
        return max((rank.bytes(use) for rank in self.limits.room.ranks), default=0)

    def sequence(self, number: int) -> Sequence | None:
        return self._by_number.get(number)

    # What the leader does: send the next step, bring back its tokens.

    def next_step(self) -> Step | None:
        self._admit()
        if self._recalled:
            return self._recall()
        self._even_out()
        if chunk := self._next_chunk():
            return self._prefill(*chunk)
        ready = [(lane, sequences) for lane in self._lanes if (sequences := lane.ready(self.limits.lookahead))]
        if ready:
            lane, sequences = min(ready, key=lambda pair: pair[0].last_decode)
            self._make_room()
            if still := [sequence for sequence in sequences if sequence in lane.sequences]:
                return self._decode(lane, still)
        if not self._by_request:
            self._operations += self.prefixes.idle_saves()
        # Ranks tell what became of files with the steps that they finish.
        if self._operations or (self.prefixes.disk and self.prefixes.disk.asked):
            return self._step(())
        return None

    def finish(
        self, step: Step, tokens: Mapping[int, int], logprobs: Mapping[int, TokenLogprobs] | None = None
    ) -> list[Progress]:
        """Take the tokens a step brought, by sequence number."""
        self.costs.home(step, self._clock())
        if step.decode:
            self._lanes[step.lane].under_way -= 1
        news = []
        for number, token in tokens.items():
            if sequence := self._by_number.get(number):
                if sequence.spoiled:
                    sequence.spoiled -= 1
                    sequence.expected -= 1
                else:
                    news.append(self._take(sequence, token, (logprobs or {}).get(number)))
        return news

    def files_done(self, rank: int, saved: Iterable[str], restored: Iterable[str], failed: Iterable[str]) -> None:
        """What a rank says became of files that it was to write or to read."""
        self._operations += self.reuse.files_done(rank, saved, restored, failed)

    def finish_embedding(self, number: int, embedding: tuple[float, ...]) -> list[Progress]:
        sequence = self._by_number.get(number)
        return [self._end(sequence, Finish.STOP)._replace(embedding=embedding)] if sequence else []

    @property
    def _admitted(self) -> list[Sequence]:
        return [*self.filling, *(sequence for lane in self._lanes for sequence in lane.sequences)]

    def _refusal(self, request: Request) -> Progress | None:
        def refuse(finish: Finish, why: str) -> Progress:
            return Progress(request.id, finish=finish, error=why)

        if request.id in self._by_request:
            return refuse(Finish.REJECTED, f"request id {request.id} is already running")
        if not request.prompt:
            return refuse(Finish.REJECTED, "the prompt has no tokens")
        if request.max_tokens <= len(request.answered):
            return refuse(Finish.REJECTED, f"max_tokens must be at least {len(request.answered) + 1}")
        if len(request.prompt) + request.max_tokens > self.limits.context:
            return refuse(
                Finish.REJECTED,
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} new ones exceed the context of "
                f"{self.limits.context} tokens",
            )
        if self.limits.room.tokens is not None and request.longest > self.limits.room.tokens:
            return refuse(
                Finish.REJECTED,
                f"{request.longest} tokens need more memory than is left for {self.limits.room.tokens}: "
                "ask for fewer max_tokens",
            )
        if foreign := self._foreign_token(request):
            return refuse(Finish.REJECTED, f"token id {foreign} is not in the vocabulary of {self.limits.vocabulary}")
        if reason := self._proved.reason(request):
            return refuse(Finish.FAILED, reason)
        # Whoever was taken before has waited its turn.
        if len(self._waiting) >= self.limits.max_queue and not request.resumed:
            return refuse(Finish.OVERLOADED, f"the queue is full ({self.limits.max_queue} requests are waiting)")
        return None

    def _foreign_token(self, request: Request) -> int | None:
        highest = max((*request.prompt, *request.answered, *request.sampling.logit_bias))
        return highest if self.limits.vocabulary and highest >= self.limits.vocabulary else None

    def _admit(self) -> None:
        if self._suspects:
            for other in [sequence for sequence in self._admitted if sequence is not self._suspects[0]]:
                self._preempt(other)
        while self._waiting and self.running < self.limits.max_batch:
            sequence = next((s for s in islice(self._in_line(), self.limits.max_batch) if not self._waits(s)), None)
            if sequence is None or not self._take_room(sequence):
                return
            self._waiting.remove(sequence)
            self._by_number[sequence.number] = sequence
            self._begin(sequence)

    def _in_line(self) -> Iterable[Sequence]:
        """Who may begin, in turn; alone whoever may be to blame for a loss."""
        if self._suspects:
            return [] if self._suspects[0].expected or self._admitted else self._suspects[:1]
        served = Counter(sequence.request.owner for sequence in self._admitted)
        # Whoever made room goes on when all that it was promised has come home.
        return (sequence for sequence in self._waiting.in_turn(served) if not sequence.expected)

    def _begin(self, sequence: Sequence) -> None:
        sequence.filling = (*sequence.request.prompt, *sequence.output)
        hit, operations = self.reuse.begin(sequence)
        self._operations += operations
        if not hit.logits:
            self.filling.append(sequence)
            return
        self._lane(self._lane_for(sequence)).sequences.append(sequence)
        self._recalled.append((sequence, hit.logits))

    def _waits(self, sequence: Sequence) -> bool:
        waits, operations = self.reuse.wait(sequence)
        self._operations += operations
        return waits

    # What is held, and what has room beside it.

    def live(self, joining: Sequence | None = None, ahead: bool = False) -> Use:
        """What the caches of streams take, or will soon: with a newcomer, with all that admitted ones were promised."""
        use = Use()
        for sequence in self.filling:
            use += rectangle([sequence.soon])
        lanes = {lane.number: [s.soon if ahead else s.length + 1 for s in lane.sequences] for lane in self._lanes}
        if joining:
            lanes.setdefault(self._lane_for(joining), []).append(joining.soon)
        for lengths in lanes.values():
            use += rectangle(lengths)
        return use

    def _take_room(self, sequence: Sequence) -> bool:
        """Whether it may begin beside those who run; what is stored gives way to it."""
        live = self.live(sequence, ahead=True)
        if not self.limits.room.holds(live) and self._admitted:
            return False
        self._operations += self.prefixes.make_room(live)
        # What is being read from disk can only go when it is there.
        reading = self.prefixes.disk is not None and self.prefixes.disk.asked > 0
        return not reading or self.limits.room.holds(live + self.prefixes.use)

    def _make_room(self) -> None:
        """For everybody's next token: what is stored gives way, then the youngest stream."""
        live = self.live()
        if self.limits.room.holds(live + self.prefixes.use):
            return
        self._operations += self.prefixes.make_room(live)
        while not self.limits.room.holds(live + self.prefixes.use) and len(self._admitted) > 1:
            self._preempt(max(self._admitted, key=lambda sequence: sequence.number))
            live = self.live()

    def _preempt(self, sequence: Sequence) -> None:
        """It makes room now and goes on later, from the tokens that it has."""
        self.preempted += 1
        self._leave(sequence)
        self._waiting.add(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Its cache goes, and its place among those who run."""
        if sequence in self.filling:
            self.filling.remove(sequence)
        self._recalled = [(other, segment) for other, segment in self._recalled if other is not sequence]
        for lane in self._lanes:
            if sequence in lane.sequences:
                lane.sequences.remove(sequence)
        if sequence.present:
            self._operations.append(Drop(sequence.number))
            sequence.present = False

    def _next_chunk(self) -> tuple[list[Sequence], int] | None:
        filling = [sequence for sequence in self.filling if sequence.prompt_left]
        if not filling:
            return None
        # The oldest prompt and the one with least left take turns: neither long nor short ones starve.
        sequence = filling[0] if self._oldest_first else min(filling, key=lambda s: (s.prompt_left, s.number))
        decoding = [lane for lane in self._lanes if lane.running]
        most = self._chunks.most(sum(other.prompt_left for other in filling), bool(decoding))
        size = sequence.chunk(most)
        spent = max((lane.prefilled for lane in decoding), default=0.0)
        if spent and spent + self._chunks.cost(size) > self._chunks.limit:
            return None
        budget = self._chunks.within(self._chunks.limit - spent) if decoding else most
        return beginning_together(sequence, size, filling, budget), size

    @property
    def _chunks(self) -> Chunks:
        fixed = self.limits.prefill_chunk
        return MeasuredChunks(self.costs, self.limits.chunks) if fixed is None else FixedChunks(fixed)

    def _prefill(self, together: list[Sequence], size: int) -> Step:
        cost = self._chunks.cost(size * len(together))
        for lane in self._lanes:
            lane.prefilled += cost
        self._oldest_first = not self._oldest_first
        if together[0].request.pooling:
            # Nothing is decoded: the sequence ends when the step with its last tokens comes home.
            return self._step((self._prompt_feed(together[0], size),))
        feeds = tuple(self._prompt_feed(sequence, size) for sequence in together)
        for sequence in together:
            if sequence.prompt_left <= (CATCH_UP if len(together) > 1 else 0):
                self.filling.remove(sequence)
                self._lane(self._lane_for(sequence)).sequences.append(sequence)
        return self._step(feeds, logits=not all(feed.partial for feed in feeds))

    def _prompt_feed(self, sequence: Sequence, size: int) -> Feed:
        if sequence.first_forward is None:
            sequence.first_forward = self._clock()
            if not sequence.request.pooling:
                timing = sequence.timing(sequence.first_forward, stopped=False)
                self.begun_news.append(Progress(sequence.request.id, timing=timing, begun=True))
        begins = not sequence.present
        tokens = sequence.next_tokens(size)
        sequence.present = True
        sequence.expected += not sequence.prompt_left
        if not sequence.prompt_left or sequence.fed in sequence.stops:
            whole = not sequence.prompt_left
            self._afterwards += self.reuse.store(sequence, sequence.filling[: sequence.fed], state=True, logits=whole)
        return Feed(sequence.number, tokens, partial=bool(sequence.prompt_left), begins=begins)

    def _recall(self) -> Step:
        feeds = []
        for sequence, segment in self._recalled:
            sequence.first_forward = sequence.first_forward or self._clock()
            sequence.expected += 1
            feeds.append(Feed(sequence.number, (), recalled=segment))
        self._recalled.clear()
        return self._step(tuple(feeds), logits=True)

    def _lane_for(self, sequence: Sequence) -> int:
        """The lane with most room, unless it would be widened so far that too much memory is wasted."""
        usual = min(range(self.limits.lanes), key=lambda number: len(self._lane(number).sequences))
        whole = self.limits.room.tokens
        if whole is None:
            return usual

        if self._wasted(sequence, usual) <= WASTE * whole:
            return usual
        return min(range(self.limits.lanes + MORE_LANES), key=lambda number: (self._wasted(sequence, number), number))

    def _wasted(self, sequence: Sequence, number: int) -> int:
        """How many tokens of the others' rows in a lane would be empty because of it, or of its own."""
        lengths = [other.soon for other in self._lane(number).sequences]
        return rectangle([*lengths, sequence.soon]).tokens - rectangle(lengths).tokens - rounded(sequence.soon)

    def _even_out(self) -> None:
        """Streams move where others have ended, so that no stage waits while the next one computes for a full lane.
        Whose prompt is being read will go where there is most room, which costs nothing.
        """
        if self.limits.lanes < 2 or self.filling:
            return
        lanes = [self._lane(number) for number in range(self.limits.lanes)]
        while True:
            fewest, most = min(lanes, key=_streams), max(lanes, key=_streams)
            if _streams(most) - _streams(fewest) < UNEVEN or not self._move(most, fewest):
                return

    def _move(self, lane: Lane, other: Lane) -> bool:
        """Whether one could go from one lane into the other, and has."""
        lasting = [sequence for sequence in lane.sequences if sequence.may_still_draw >= WORTH_MOVING]
        if not lasting:
            return False
        sequence = min(lasting, key=lambda sequence: (self._wasted(sequence, other.number), -sequence.number))
        place = lane.sequences.index(sequence)
        del lane.sequences[place]
        other.sequences.append(sequence)
        if not self.limits.room.holds(self.live() + self.prefixes.use):
            lane.sequences.insert(place, other.sequences.pop())
            return False
        self._operations.append(Leave(sequence.number))
        return True

    def _lane(self, number: int) -> Lane:
        self._lanes += [Lane(new) for new in range(len(self._lanes), number + 1)]
        return self._lanes[number]

    def _decode(self, lane: Lane, ready: list[Sequence]) -> Step:
        for sequence in lane.sequences:
            if not sequence.may_decode:
                # Its row goes with this step: the ranks hold whoever decodes and nobody else.
                self._operations += self.reuse.keep_answer(sequence)
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
        sequence.drawn += 1
        return Feed(sequence.number, tokens)

    def _step(self, feeds: tuple[Feed, ...], *, decode: bool = False, logits: bool = False, lane: int = 0) -> Step:
        step = Step(self._next_step, tuple(self._operations), feeds, decode, logits, lane)
        self.costs.sent(step, self._clock())
        self._next_step += 1
        self._operations, self._afterwards = self._afterwards, []
        return step

    def _take(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> Progress:
        sequence.expected -= 1
        timing = None
        if sequence.first_token is None:
            sequence.first_token = self._clock()
            self.reuse.prompt_read(sequence)
            # Told now, since nobody else knows it if this engine is lost.
            timing = sequence.timing(sequence.first_token, stopped=False)
        if token in sequence.request.stop_tokens:
            return self._end(sequence, Finish.STOP, end=(token,))
        sequence.output.append(token)
        if sequence.suspected:
            self._acquit(sequence)
        told = Progress(sequence.request.id, (token,), timing=timing, logprobs=(logprobs,) if logprobs else ())
        if len(sequence.output) < sequence.request.max_tokens:
            return told
        ended = self._end(sequence, Finish.LENGTH)
        return told._replace(finish=ended.finish, timing=ended.timing)

    def _end(self, sequence: Sequence, finish: Finish, *, error: str = "", end: tuple[int, ...] = ()) -> Progress:
        del self._by_request[sequence.request.id]
        self._by_number.pop(sequence.number, None)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence.suspected:
            self._acquit(sequence)
        if finish is not Finish.FAILED:
            self._operations += self.reuse.keep_answer(sequence, end)
        self._leave(sequence)
        if sequence.constraint:
            sequence.constraint.close()
        timing = sequence.timing(self._clock(), stopped=finish is Finish.STOP)
        return Progress(sequence.request.id, (), finish, error, timing)


def _streams(lane: Lane) -> int:
    return len(lane.running)
