from __future__ import annotations

import mlx.core as mx

from chorus.messages.rank import Drop, Feed, Step
from chorus.rank.graph_tokens import GraphTokens


def decode(*feeds: tuple[int, tuple[int, ...]], lane: int = 0, drop: tuple[int, ...] = ()) -> Step:
    return Step(1, tuple(map(Drop, drop)), tuple(Feed(*feed) for feed in feeds), decode=True, logits=True, lane=lane)


def fed(tokens: GraphTokens, step: Step) -> list[int] | None:
    array = tokens.of(step)
    if array is None:
        return None
    assert array.shape == (len(step.feeds), 1)
    return array[:, 0].tolist()


def test_sequences_are_fed_what_was_sampled_for_them_last() -> None:
    tokens = GraphTokens()
    both = decode((1, ()), (2, ()))
    tokens.note(both, mx.array([11, 12]))
    assert fed(tokens, both) == [11, 12]
    tokens.note(both, mx.array([21, 22]))
    assert fed(tokens, both) == [21, 22]
    assert fed(tokens, decode((2, ()))) == [22]
    assert fed(tokens, decode((1, ()), (2, (5,)))) == [21, 5]
    assert fed(tokens, decode((1, (4,)), (2, (5,)))) is None


def test_lanes_do_not_meet_and_what_was_sampled_elsewhere_meanwhile_counts() -> None:
    tokens = GraphTokens()
    first, second = decode((1, ())), decode((2, ()), lane=1)
    tokens.note(first, mx.array([11]))
    tokens.note(second, mx.array([12]))
    assert (fed(tokens, first), fed(tokens, second)) == ([11], [12])
    tokens.note(Step(2, (), (Feed(1, (7, 8, 9)),), logits=True), mx.array([31]))
    assert (fed(tokens, first), fed(tokens, second)) == ([31], [12])
    tokens.note(second, mx.array([32]))
    tokens.note(decode((1, ()), (2, ())), mx.array([41, 42]))
    assert fed(tokens, second) == [42]
