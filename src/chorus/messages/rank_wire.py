"""Steps as they cross the control link."""

from __future__ import annotations

from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.rank import Drop, Feed, Fork, Operation, Step


def step_to_wire(step: Step) -> wire.Step:
    return wire.Step(
        number=step.number,
        operations=[_operation_to_wire(operation) for operation in step.operations],
        feeds=[
            wire.Feed(sequence=feed.sequence, tokens=feed.tokens, partial=feed.partial, begins=feed.begins)
            for feed in step.feeds
        ],
        decode=step.decode,
        logits=step.logits,
        lane=step.lane,
    )


def step_from_wire(message: wire.Step) -> Step:
    return Step(
        number=message.number,
        operations=tuple(_operation_from_wire(operation) for operation in message.operations),
        feeds=tuple(Feed(feed.sequence, tuple(feed.tokens), feed.partial, feed.begins) for feed in message.feeds),
        decode=message.decode,
        logits=message.logits,
        lane=message.lane,
    )


def _operation_to_wire(operation: Operation) -> wire.Operation:
    match operation:
        case Drop(sequence):
            return wire.Operation(drop=sequence)
        case Fork(source, target, length):
            return wire.Operation(fork=wire.Fork(source=source, target=target, length=length))


def _operation_from_wire(message: wire.Operation) -> Operation:
    if message.WhichOneof("kind") == "fork":
        return Fork(message.fork.source, message.fork.target, message.fork.length)
    return Drop(message.drop)
