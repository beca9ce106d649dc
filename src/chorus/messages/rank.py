"""The step: the one message by which the leader moves every rank.

A step is one forward (a rectangle of tokens) with the cache operations that come before it. The design's list of
forwards became one forward per step: the answer of a decode forward can then be used, and the next one sent, while a
prefill chunk is still on its way through the stages.
"""

from __future__ import annotations

from dataclasses import dataclass


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
