"""Ranks without tensors: they keep the tokens themselves where real ones keep what was computed from them.

Whatever a step asks for that real caches could not do is an error here, and the next token follows from all tokens
before it: an answer is right only if every cache held the right ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chorus.engine.room import Use, rectangle
from chorus.engine.scheduling.scheduler import Scheduler
from chorus.messages.engine import Finish, Progress, Request
from chorus.messages.rank import Drop, Erase, Evict, Fork, Keeping, Leave, Operation, Restore, Save, Split, Step, Store

VOCABULARY = 50
STOP = 0


def next_token(tokens: Sequence[int], seed: int = 0) -> int:
    value = seed
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCABULARY


def answer(request: Request) -> tuple[int, ...]:
    """What the request must get, computed with nothing kept."""
    tokens: list[int] = [*request.prompt, *request.answered]
    while len(tokens) < request.longest:
        token = next_token(tokens, request.sampling.seed)
        if token in request.stop_tokens:
            break
        tokens.append(token)
    return tuple(tokens[len(request.prompt) :])


@dataclass
class Segment:
    start: int
    tokens: list[int]
    state: list[int] | None = None


@dataclass
class FakeRanks:
    keeping: Keeping
    seeds: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, list[int]] = field(default_factory=dict)
    lanes: dict[int, list[int]] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    drawn: dict[int, int] = field(default_factory=dict)
    logits: set[int] = field(default_factory=set)
    newest: tuple[int, ...] = ()
    files: dict[str, Segment] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=lambda: {"saved": [], "restored": [], "failed": []})
    fed: int = 0

    def run(self, step: Step, seeds: dict[int, int]) -> dict[int, int]:
        """The tokens that the step brings."""
        kept = set(self.logits)
        for operation in step.operations:
            self.operate(operation)
            # A step may begin with what it lets go of for somebody else.
            kept |= self.logits
        if step.recalls:
            for feed in step.feeds:
                assert feed.recalled in kept, "its logits were kept"
                self.drawn[feed.sequence] = next_token(self.sequences[feed.sequence], seeds.get(feed.sequence, 0))
            return {feed.sequence: self.drawn[feed.sequence] for feed in step.feeds}
        if step.decode:
            wanted = list(step.sequences)
            for gone in set(self.lanes.get(step.lane, [])) - set(wanted):
                del self.sequences[gone]
            stay = [number for number in self.lanes.get(step.lane, []) if number in wanted]
            assert wanted[: len(stay)] == stay, "rows keep their order"
            self.lanes[step.lane] = wanted
        elif len(step.feeds) > 1:
            assert len({len(self.sequences.get(number, [])) for number in step.sequences}) == 1, "a rectangle"
            assert len({len(feed.tokens) for feed in step.feeds}) == 1
        for feed in step.feeds:
            if feed.begins:
                assert feed.sequence not in self.sequences
                self.sequences[feed.sequence] = []
            self.sequences[feed.sequence] += feed.tokens or (self.drawn[feed.sequence],)
            self.fed += max(1, len(feed.tokens))
            self.drawn[feed.sequence] = next_token(self.sequences[feed.sequence], seeds.get(feed.sequence, 0))
        self.newest = step.sequences if step.logits else ()
        return {feed.sequence: self.drawn[feed.sequence] for feed in step.feeds if not feed.partial}

    def operate(self, operation: Operation) -> None:
        match operation:
            case Drop(sequence):
                self.sequences.pop(sequence, None)
                for rows in self.lanes.values():
                    if sequence in rows:
                        rows.remove(sequence)
            case Leave(sequence):
                assert sequence in self.sequences
                for rows in self.lanes.values():
                    if sequence in rows:
                        rows.remove(sequence)
            case Store(sequence, number, start, stop, state, logits):
                assert number not in self.segments
                if logits:
                    assert sequence in self.newest, "the leader has the logits of the last forward alone"
                    self.logits.add(number)
                held = self.sequences[sequence]
                assert start <= stop <= len(held)
                assert not state or len(held) == stop, "a state stands where the sequence stands"
                self.segments[number] = Segment(start, held[start:stop], held[:] if state else None)
            case Split(number, at, rest):
                whole = self.segments[number]
                assert 0 < at < len(whole.tokens)
                assert rest not in self.segments
                self.segments[rest] = Segment(whole.start + at, whole.tokens[at:], whole.state)
                self.segments[number] = Segment(whole.start, whole.tokens[:at])
            case Evict(number):
                self.segments.pop(number, None)
                self.logits.discard(number)
            case Erase():
                self.files.clear()
            case Save(number, key):
                assert key not in self.files
                self.files[key] = self.segments[number]
                self.said["saved"].append(key)
            case Restore(number, key):
                assert number not in self.segments
                if file := self.files.get(key):
                    self.segments[number] = file
                self.said["restored" if file else "failed"].append(key)
            case Fork(sequence, parts):
                assert sequence not in self.sequences
                tokens: list[int] = []
                for part in parts:
                    segment = self.segments[part.segment]
                    assert segment.start == len(tokens) or not part.length
                    assert part.length <= len(segment.tokens)
                    tokens += segment.tokens[: part.length]
                if not self.keeping.anywhere:
                    state = self.segments[parts[-1].segment].state
                    assert state is not None
                    assert state[: len(tokens)] == tokens
                    assert len(state) == len(tokens) or len(state) <= self.keeping.reach
                self.sequences[sequence] = tokens

    def say(self) -> dict[str, list[str]]:
        said, self.said = self.said, {"saved": [], "restored": [], "failed": []}
        return said

    def held(self) -> Use:
        rows = {row for lane in self.lanes.values() for row in lane}
        use = Use(
            sum(len(segment.tokens) for segment in self.segments.values()),
            sum(segment.state is not None for segment in self.segments.values()),
        )
        for lane in self.lanes.values():
            use += rectangle([len(self.sequences[row]) for row in lane])
        for number, tokens in self.sequences.items():
            if number not in rows:
                use += rectangle([len(tokens)])
        return use


class Run:
    """A scheduler over such ranks, with as many steps under way as a leader has."""

    def __init__(self, scheduler: Scheduler, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.ranks = FakeRanks(scheduler.prefixes.keeping)
        self.depth = depth
        self.answers: dict[str, list[int]] = {}
        self.ended: dict[str, Progress] = {}
        self._sent: list[tuple[Step, dict[int, int]]] = []

    def submit(self, request: Request) -> None:
        refused = self.scheduler.submit(request)
        assert refused is None, refused
        self.answers[request.id] = list(request.answered)

    def cancel(self, name: str) -> None:
        if ended := self.scheduler.cancel(name):
            self._hear([ended])

    def turn(self) -> None:
        """Send what may be sent, bring home the oldest."""
        while len(self._sent) < self.depth + 1 and (step := self.scheduler.next_step()):
            seeds = {n: s.request.sampling.seed for n in step.sequences if (s := self.scheduler.sequence(n))}
            self._sent.append((step, self.ranks.run(step, seeds)))
            assert self.scheduler.limits.room.holds(self.ranks.held()), "more is held than there is room for"
        self.scheduler.files_done(0, **self.ranks.say())
        if self._sent:
            step, tokens = self._sent.pop(0)
            self._hear(self.scheduler.finish(step, tokens))

    def until_idle(self, turns: int = 20_000) -> None:
        for _ in range(turns):
            disk = self.scheduler.prefixes.disk
            if self.scheduler.idle and not self._sent and not (disk and disk.asked):
                return
            self.turn()
        raise AssertionError("it never comes to rest")

    def _hear(self, news: list[Progress]) -> None:
        for progress in news:
            self.answers[progress.id] += progress.tokens
            if progress.finish:
                assert progress.id not in self.ended
                self.ended[progress.id] = progress

    def check_that_nothing_is_left(self) -> None:
        """Of those who ran, and of what is kept once that is cleared."""
        assert not self.ranks.sequences
        assert len(self.ranks.segments) == self.scheduler.prefixes.entries
        self.scheduler.clear_cache()
        self.until_idle()
        assert not self.ranks.segments
        assert self.scheduler.prefixes.use.tokens == self.scheduler.prefixes.use.states == 0

    def right(self, request: Request) -> bool:
        whole, got = answer(request), tuple(self.answers[request.id])
        if self.ended[request.id].finish is Finish.CANCELLED:
            return got == whole[: len(got)]
        return got == whole
