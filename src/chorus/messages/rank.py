"""The step: the one message by which the leader moves every rank.

A step is one forward (a rectangle of tokens) with the cache operations that come before it. The design's list of
forwards became one forward per step: the answer of a decode forward can then be used, and the next one sent, while a
prefill chunk is still on its way through the stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorus.messages.proto import rank_pb2 as pb

CACHE_STEP = 256
"""Caches grow by so many tokens at once, on every rank: what holds 257 takes the room of 512."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a sequence and free its cache."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A sequence goes out of the batch that it decodes in; the next batch that names it takes it in."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Part:
    """The first `length` tokens of a segment."""

    segment: int
    length: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence begins with what is stored: these parts, one behind the other. Windows and recurrent states are those
    of the last part, which may have no tokens besides.
    """

    sequence: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Keep the tokens from `start` to `stop` of a sequence, which goes on, as a segment."""

    sequence: int
    segment: int
    start: int
    stop: int
    state: bool = False
    """With its windows and recurrent states, which stand at `stop` now. Where `start` is `stop`, these alone."""
    logits: bool = False
    """The leader, and it alone, keeps the logits behind it too: who begins there has nothing to feed."""


@dataclass(frozen=True, slots=True)
class Split:
    """The first `at` tokens of a segment stay; what comes behind them, and the state, becomes the segment `rest`."""

    segment: int
    at: int
    rest: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Forget a segment."""

    segment: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write a segment to a file of this name; the segment stays until it is evicted. The rank says when it is done."""

    segment: int
    key: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Read a file of this name as a segment; the rank says with this step whether it could, and has no such segment if
    not.
    """

    segment: int
    key: str


@dataclass(frozen=True, slots=True)
class Erase:
    """Delete the file of this name; without one, all of them."""

    key: str = ""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a model's caches allow to be kept, the same on every rank."""

    anywhere: bool = False
    """Keys and values alone: a sequence may begin with any number of stored tokens. Otherwise it begins where windows
    or recurrent states were kept.
    """
    reach: int = 0
    """Windows that have seen no more tokens than this still hold them all: what was kept there serves for any shorter
    length too.
    """
    refusal: str = ""
    """Why nothing can be kept; empty where it can."""


Operation = Drop | Leave | Fork | Store | Split | Evict | Save | Restore | Erase


@dataclass(frozen=True, slots=True)
class Feed:
    sequence: int
    tokens: tuple[int, ...]
    """Empty: the token that was sampled for the sequence last, still inside the graph (look-ahead)."""
    partial: bool = False
    """More of the prompt follows: what is sampled behind these tokens is thrown away."""
    begins: bool = False
    """The sequence is new. A rank that does not know any other sequence has lost it, and must not answer for it."""
    recalled: int = 0
    """Nothing is fed: the token is drawn from the logits that were kept with this segment."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    operations: tuple[Operation, ...] = ()
    feeds: tuple[Feed, ...] = ()
    decode: bool = False
    """Decode feeds one token to every sequence of a batch; otherwise a sequence takes a chunk of its prompt, or
    several new ones take equally long ones.
    """
    logits: bool = False
    """Whether anybody's logits of the last position are wanted."""
    lane: int = 0
    """Which of the batches decodes. A pipeline has several, so that no stage waits while another computes."""

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(feed.sequence for feed in self.feeds)

    @property
    def recalls(self) -> bool:
        """Whether its tokens are drawn from kept logits: there is no forward."""
        return any(feed.recalled for feed in self.feeds)

    @property
    def tokens(self) -> int:
        return 0 if self.recalls else sum(max(1, len(feed.tokens)) for feed in self.feeds)


def step_to_wire(step: Step) -> pb.Step:
    return pb.Step(
        number=step.number,
        operations=[_operation_to_wire(operation) for operation in step.operations],
        feeds=[
            pb.Feed(
                sequence=feed.sequence,
                tokens=feed.tokens,
                partial=feed.partial,
                begins=feed.begins,
                recalled=feed.recalled,
            )
            for feed in step.feeds
        ],
        decode=step.decode,
        logits=step.logits,
        lane=step.lane,
    )


def step_from_wire(message: pb.Step) -> Step:
    return Step(
        number=message.number,
        operations=tuple(_operation_from_wire(operation) for operation in message.operations),
        feeds=tuple(
            Feed(feed.sequence, tuple(feed.tokens), feed.partial, feed.begins, feed.recalled) for feed in message.feeds
        ),
        decode=message.decode,
        logits=message.logits,
        lane=message.lane,
    )


def _operation_to_wire(operation: Operation) -> pb.Operation:
    match operation:
        case Drop(sequence):
            return pb.Operation(drop=sequence)
        case Leave(sequence):
            return pb.Operation(leave=sequence)
        case Fork(sequence, parts):
            taken = [pb.Part(segment=part.segment, length=part.length) for part in parts]
            return pb.Operation(fork=pb.Fork(sequence=sequence, parts=taken))
        case Store(sequence, segment, start, stop, state, _):
            store = pb.Store(sequence=sequence, segment=segment, start=start, stop=stop, state=state)
            return pb.Operation(store=store)
        case Split(segment, at, rest):
            return pb.Operation(split=pb.Split(segment=segment, at=at, rest=rest))
        case Evict(segment):
            return pb.Operation(evict=segment)
        case Save(segment, key):
            return pb.Operation(save=pb.File(segment=segment, key=key))
        case Restore(segment, key):
            return pb.Operation(restore=pb.File(segment=segment, key=key))
        case Erase(key):
            return pb.Operation(erase=key)


def _operation_from_wire(message: pb.Operation) -> Operation:
    match message.WhichOneof("kind"):
        case "drop":
            return Drop(message.drop)
        case "leave":
            return Leave(message.leave)
        case "fork":
            parts = tuple(Part(part.segment, part.length) for part in message.fork.parts)
            return Fork(message.fork.sequence, parts)
        case "store":
            store = message.store
            return Store(store.sequence, store.segment, store.start, store.stop, store.state)
        case "split":
            return Split(message.split.segment, message.split.at, message.split.rest)
        case "evict":
            return Evict(message.evict)
        case "save":
            return Save(message.save.segment, message.save.key)
        case "restore":
            return Restore(message.restore.segment, message.restore.key)
        case "erase":
            return Erase(message.erase)
        case unknown:
            raise ValueError(f"a step with an operation that this version does not know ({unknown})")
