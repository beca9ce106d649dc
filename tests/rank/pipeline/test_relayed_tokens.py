"""Over a collective a pipeline looks ahead: the first stage starts with a token that is still inside the graph."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from chorus.messages.rank import Feed, Step
from chorus.rank.load import stored_layers
from chorus.rank.pipeline.token_relay import TokenRelay, placeholder
from tests.support.mpi_group import check_as_alone, run_group
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("name", "lanes"), [("qwen3_next", 1), ("gemma3n", 3)])
def test_three_stages_with_tokens_in_the_graph_say_what_the_whole_model_says(
    name: str, lanes: int, tmp_path: Path
) -> None:
    """States, and tuples that pass between layers; one batch, and as many as there are stages."""
    model = write_tiny_model(tmp_path / "model", name)
    layers = stored_layers(model)
    answer = run_group(model, tmp_path, 3, split=(layers - 3, 2, 1), lanes=lanes)
    assert answer["lookahead"]
    check_as_alone(model, answer)


class Leader:
    """What it has sampled, in the order in which it was sent."""

    def __init__(self, *sent: list[int]) -> None:
        self.sent = list(sent)

    def receive(self, count: int) -> mx.array:
        tokens = self.sent.pop(0)
        assert len(tokens) == count
        return mx.array(tokens, dtype=mx.uint32)


def decode(number: int, *sequences: int) -> Step:
    return Step(number, feeds=tuple(Feed(sequence, ()) for sequence in sequences), decode=True, logits=True)


def test_tokens_are_received_in_order_and_not_before_they_are_needed() -> None:
    leader = Leader([11, 12], [21], [31, 32])
    relay = TokenRelay(leader.receive)
    for step in (decode(1, 1, 2), decode(2, 3), decode(3, 1, 2)):
        relay.expect(step)
    wanted = relay.of(decode(4, 1, 2))
    assert wanted is not None
    assert wanted.tolist() == [[31], [32]]
    assert leader.sent == []
    other = relay.of(decode(5, 3))
    assert other is not None
    assert other.tolist() == [[21]]


def test_what_another_lane_waits_for_is_left_on_its_way() -> None:
    leader = Leader([11], [21])
    relay = TokenRelay(leader.receive)
    relay.expect(decode(1, 1))
    relay.expect(decode(2, 2))
    wanted = relay.of(decode(3, 1))
    assert wanted is not None
    assert wanted.tolist() == [[11]]
    assert leader.sent == [[21]]


def test_a_step_that_brings_its_tokens_receives_nothing() -> None:
    leader = Leader([11])
    relay = TokenRelay(leader.receive)
    relay.expect(decode(1, 1))
    assert relay.of(Step(2, feeds=(Feed(1, (5,)),), decode=True, logits=True)) is None
    assert leader.sent == [[11]]


def test_a_later_stage_needs_only_the_shape_of_the_tokens() -> None:
    assert placeholder(Step(1, feeds=(Feed(1, (5, 6)),))) is None
    stand_in = placeholder(decode(2, 1, 2))
    assert stand_in is not None
    assert stand_in.shape == (2, 1)
