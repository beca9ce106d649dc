"""The step: the one message by which the leader moves every rank.

A step is one forward (a rectangle of tokens) with the cache operations that come before it. The design's list of
forwards became one forward per step: the answer of a decode forward can then be used, and the next one sent, while a
prefill chunk is still on its way through the stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorus.messages.proto import rank_pb2 as pb


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a sequence and free its cache."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Start `target` from the first `length` tokens of `source`, which stays as it is."""

    source: int
    target: int
    length: int


Operation = Drop | Fork


@dataclass(frozen=True, slots=True)
class Feed:
    sequence: int
    tokens: tuple[int, ...]
    """Empty: the token that was sampled for the sequence last, still inside the graph (look-ahead)."""
    partial: bool = False
    """More of the prompt follows: what is sampled behind these tokens is thrown away."""
    begins: bool = False
    """The sequence is new. A rank that does not know any other sequence has lost it, and must not answer for it."""


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
    def tokens(self) -> int:
        return sum(max(1, len(feed.tokens)) for feed in self.feeds)


def step_to_wire(step: Step) -> pb.Step:
    return pb.Step(
        number=step.number,
        operations=[_operation_to_wire(operation) for operation in step.operations],
        feeds=[
            pb.Feed(sequence=feed.sequence, tokens=feed.tokens, partial=feed.partial, begins=feed.begins)
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
        feeds=tuple(Feed(feed.sequence, tuple(feed.tokens), feed.partial, feed.begins) for feed in message.feeds),
        decode=message.decode,
        logits=message.logits,
        lane=message.lane,
    )


def _operation_to_wire(operation: Operation) -> pb.Operation:
    match operation:
        case Drop(sequence):
            return pb.Operation(drop=sequence)
        case Fork(source, target, length):
            return pb.Operation(fork=pb.Fork(source=source, target=target, length=length))


def _operation_from_wire(message: pb.Operation) -> Operation:
    if message.WhichOneof("kind") == "fork":
        return Fork(message.fork.source, message.fork.target, message.fork.length)
    return Drop(message.drop)
