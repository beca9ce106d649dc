"""What a following rank does with a step, by the way the model is divided."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from chorus.messages.rank import Step
from chorus.rank.pipeline.token_relay import TokenRelay, placeholder
from chorus.rank.runner import Runner
from chorus.rank.seat import Seat
from chorus.rank.tensor.divide import from_leader
from chorus.rank.tensor.graph_tokens import GraphTokens
from chorus.transport.collective import CollectiveLink
from chorus.transport.links import Link, Traffic


class Member(Protocol):
    @property
    def cache_bytes_per_token(self) -> int: ...

    @property
    def traffic(self) -> Traffic: ...

    def run(self, step: Step) -> None: ...

    def forget(self) -> None:
        """Drop every sequence: their leader is gone."""
        ...

    def close(self) -> None:
        """Make room for another model."""
        ...


def member_of(seat: Seat) -> Member:
    runner = Runner(seat.shard.stage)
    if seat.link is not None:
        return PipelineMember(runner, seat.link, seat.relay)
    assert seat.peers is not None, "a rank that follows has somebody beside or behind it"
    return TensorMember(runner, seat.peers)


class PipelineMember:
    """Takes activations from the stage before, hands its own to the next. Ranks that share a stage do so each with
    its like: after the last sum of a stage, all of them hold the same.
    """

    def __init__(self, runner: Runner, link: Link, relay: CollectiveLink | None) -> None:
        self._runner = runner
        self._link = link
        self._relay = TokenRelay(relay.receive_tokens) if relay and runner.stage.is_first else None

    @property
    def cache_bytes_per_token(self) -> int:
        return self._runner.cache_bytes_per_token

    @property
    def traffic(self) -> Traffic:
        return self._link.traffic

    def run(self, step: Step) -> None:
        if not step.feeds:
            self._runner.run(step)
            return
        stage = self._runner.stage
        if stage.is_first:
            outputs = self._runner.run(step, self._relay.of(step) if self._relay else None)
        else:
            outputs = self._runner.run(step, placeholder(step), self._link.receive(step.number))
        if self._relay:
            self._relay.expect(step)
        if stage.is_last:
            # It computes beside the leader; what comes out, the leader has too.
            mx.eval(outputs)
        else:
            self._link.send(step.number, outputs)

    def forget(self) -> None:
        self._runner = Runner(self._runner.stage)

    def close(self) -> None:
        self._link.close()


class TensorMember:
    """Runs the same forwards as the leader on its own slices; tokens arrive inside the graph."""

    def __init__(self, runner: Runner, group: mx.distributed.Group) -> None:
        self._runner = runner
        self._group = group
        self._tokens = GraphTokens()

    @property
    def cache_bytes_per_token(self) -> int:
        return self._runner.cache_bytes_per_token

    @property
    def traffic(self) -> Traffic:
        return Traffic()

    def run(self, step: Step) -> None:
        outputs = self._runner.run(step, self._tokens.of(step))
        if step.logits:
            tokens = from_leader(mx.zeros((len(step.feeds),), mx.uint32), self._group, after=outputs)
            mx.async_eval(tokens)
            self._tokens.note(step, tokens)

    def forget(self) -> None:
        self._runner = Runner(self._runner.stage)
        self._tokens = GraphTokens()

    def close(self) -> None:
        pass
