"""What a rank does in a step, by the way the model is divided: each kind of parallelism with its two sides.

`take_part` connects a rank and loads its part; what it gives leads (the engine's process) or follows (the others).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from chorus.messages.load import LoadRequest, ranks_here
from chorus.messages.rank import Step
from chorus.planning.split import check_layer_counts, layers_of
from chorus.platform import faults
from chorus.rank.cache.disk import Disk
from chorus.rank.disk_tier import open_disk
from chorus.rank.graph_tokens import GraphTokens
from chorus.rank.join import connect, layout_of
from chorus.rank.load import LoadedShard, load_shard, load_slices, own_folder
from chorus.rank.pipeline.token_relay import TokenRelay, placeholder
from chorus.rank.runner import Runner
from chorus.rank.tensor.divide import TensorPlan, from_leader, wait_for_peers
from chorus.transport.links import Inbox, Link, TokenPath, Traffic
from chorus.transport.meeting import Connection
from chorus.transport.security import PRIVATE, Security


class LeadingSide(Protocol):
    stages: int
    depth: int
    """How many steps may be on their way through the stages at once."""
    lookahead: bool
    """Whether the first layers find sampled tokens in the graph; else a step must bring the tokens themselves."""
    sum_seconds: float | None
    """What a small sum over the ranks took when they met; None until then, and where nothing is summed."""

    def receive(self, step: Step) -> list[mx.array] | None:
        """What the stage before ours computed for this step; None where ours is the first."""
        ...

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        """Hand sampled tokens to the other ranks inside the graph, where they feed themselves."""
        ...

    def abandon(self, reason: str) -> None:
        """Wake up whoever receives: nothing more will come. May be called from any thread."""
        ...

    def close(self) -> None: ...


class FollowingSide(Protocol):
    runner: Runner
    computes_on: bool
    """Whether a step may still be computed when `run` has returned."""

    @property
    def traffic(self) -> Traffic: ...

    def run(self, step: Step) -> None: ...

    def forget(self) -> None:
        """Drop every sequence: their leader is gone."""
        ...

    def abandon(self, reason: str) -> None:
        """Wake up whoever waits for another rank. May be called from any thread."""
        ...

    def close(self) -> None:
        """Make room for another model."""
        ...


class Part(Protocol):
    """A rank's part of the model, loaded, and its connection with the other ranks."""

    @property
    def shard(self) -> LoadedShard: ...

    @property
    def disk(self) -> Disk: ...

    def lead(self) -> LeadingSide: ...

    def follow(self) -> FollowingSide: ...

    def connected_by(self, connection: Connection) -> Part:
        """The same part with new links to the other ranks."""
        ...


@dataclass(frozen=True)
class PipelinePart:
    """One stage of several. Ranks that share a stage (hybrid) pass activations each to its like: after the last sum of
    a stage, all of them hold the same.
    """

    shard: LoadedShard
    link: Link
    stages: int
    first_stage: int
    """The rank that holds the first layers, or the last of those that do."""
    disk: Disk
    rank: int

    @property
    def token_path(self) -> TokenPath | None:
        return None if self.shard.stage.every_stage_reads_tokens else self.link.tokens

    def lead(self) -> LeadingSide:
        return PipelineLeader(self)

    def follow(self) -> FollowingSide:
        return PipelineFollower(self)

    def connected_by(self, connection: Connection) -> Part:
        assert connection.link is not None
        return replace(self, link=connection.link)


class PipelineLeader:
    """Takes activations from the stage before; sampled tokens go to the first stage where there is a way for them."""

    sum_seconds: float | None = None

    def __init__(self, part: PipelinePart) -> None:
        self.stages = part.stages
        # One chunk in every stage and one on its way: more would only make cancelling slower.
        self.depth = part.stages + 1
        self._link = part.link
        self._tokens = part.token_path
        self._first_stage = part.first_stage
        self.lookahead = self._tokens is not None

    def receive(self, step: Step) -> list[mx.array] | None:
        return self._link.receive(step.number) if step.feeds and not step.recalls else None

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        if self._tokens:
            self._tokens.send_tokens(tokens, self._first_stage)
        return tokens

    def abandon(self, reason: str) -> None:
        self._link.abandon(reason)

    def close(self) -> None:
        self._link.close()


class PipelineFollower:
    """Takes activations from the stage before, hands its own to the next."""

    def __init__(self, part: PipelinePart) -> None:
        self.runner = Runner(part.shard.stage, part.disk)
        self._rank = part.rank
        self._link = part.link
        # Where tokens stay inside the graph arrays do too: what is sent is computed later.
        self.computes_on = part.link.tokens is not None
        tokens = part.token_path
        self._relay = TokenRelay(tokens.receive_tokens) if tokens and part.shard.stage.is_first else None

    @property
    def traffic(self) -> Traffic:
        return self._link.traffic

    def run(self, step: Step) -> None:
        if not step.feeds or step.recalls:
            self.runner.run(step)
            if self._relay:
                self._relay.expect(step)
            return
        stage = self.runner.stage
        rank = self._rank
        faults.at("forward", rank, step.number, (token for feed in step.feeds for token in feed.tokens))
        if stage.is_first:
            outputs = self.runner.run(step, self._relay.of(step) if self._relay else None)
        else:
            outputs = self.runner.run(step, placeholder(step), self._link.receive(step.number))
        if self._relay:
            self._relay.expect(step)
        if stage.is_last:
            # It computes beside the leader; what comes out, the leader has too.
            mx.eval(outputs)
        else:
            faults.at("send", rank, step.number)
            self._link.send(step.number, outputs)

    def forget(self) -> None:
        self.runner = Runner(self.runner.stage, self.runner.disk)

    def abandon(self, reason: str) -> None:
        self._link.abandon(reason)

    def close(self) -> None:
        self._link.close()


@dataclass(frozen=True)
class TensorPart:
    """A slice of every layer."""

    shard: LoadedShard
    peers: mx.distributed.Group
    disk: Disk
    rank: int

    def lead(self) -> LeadingSide:
        return TensorLeader(self)

    def follow(self) -> FollowingSide:
        return TensorFollower(self)

    def connected_by(self, connection: Connection) -> Part:
        assert connection.peers is not None
        return replace(self, peers=connection.peers)


class TensorLeader:
    """Every rank runs every forward on its own slices; sampled tokens reach them inside the graph."""

    stages = depth = 1
    lookahead = True

    def __init__(self, part: TensorPart) -> None:
        self._peers = part.peers
        self.sum_seconds: float | None = None

    def receive(self, step: Step) -> list[mx.array] | None:
        if self.sum_seconds is None and step.feeds:
            self.sum_seconds = wait_for_peers(self._peers)
        return None

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        return from_leader(tokens, self._peers, after=outputs)

    def abandon(self, reason: str) -> None:
        """Nobody can be woken up inside a collective: the leader's process is left."""

    def close(self) -> None:
        pass


class TensorFollower:
    """Runs the same forwards as the leader on its own slices; tokens arrive inside the graph."""

    computes_on = True

    def __init__(self, part: TensorPart) -> None:
        self.runner = Runner(part.shard.stage, part.disk)
        self._rank = part.rank
        self._peers = part.peers
        self._tokens = GraphTokens()
        self._met = False

    @property
    def traffic(self) -> Traffic:
        return Traffic()

    def run(self, step: Step) -> None:
        if not self._met and step.feeds:
            wait_for_peers(self._peers)
            self._met = True
        faults.at("forward", self._rank, step.number, (token for feed in step.feeds for token in feed.tokens))
        outputs = self.runner.run(step, self._tokens.of(step))
        if step.logits:
            tokens = from_leader(mx.zeros((len(step.feeds),), mx.uint32), self._peers, after=outputs)
            mx.async_eval(tokens)
            self._tokens.note(step, tokens)

    def forget(self) -> None:
        self.runner = Runner(self.runner.stage, self.runner.disk)
        self._tokens = GraphTokens()

    def abandon(self, reason: str) -> None:
        """Nobody can be woken up inside a collective: the process is ended."""

    def close(self) -> None:
        pass


def take_part(
    rank: int,
    path: Path,
    request: LoadRequest,
    inbox: Inbox,
    progress: Callable[[int, int], None],
    security: Security = PRIVATE,
) -> Part:
    """The ranks meet first: every one does it now, and one that cannot load says so a moment later."""
    inbox.clear(request.session)
    connection = connect(rank, request, inbox, security)
    layout = layout_of(request)
    place = layout.place(rank)
    options: dict[str, Any] = {
        "dtype": request.dtype,
        "cpu_products": request.cpu_products,
        "pack": request.pack or None,
        "policy": request.policies[rank] if request.policies else None,
        "kv_bits": request.kv_bits,
        "memory_fraction": request.memory_fraction,
        "ranks_here": ranks_here(request.addresses),
        "trust_remote_code": request.trust_remote_code,
        "progress": progress,
    }

    def layers(total: int) -> range:
        return layers_of(place.stage, check_layer_counts(layout.split, total, layout.stages))

    if connection.peers is None:
        shard = load_shard(own_folder(path, rank, layout.split, None), layers, **options)
    else:
        folder = own_folder(path, rank, layout.split, layout.weights)
        shard = load_slices(folder, TensorPlan(place.member, place.weights), connection.peers, layers, **options)
    # A folder that the leader names means nothing on another machine.
    place_on_disk = request.disk_folder if rank == 0 or request.addresses[rank].startswith("unix:") else ""
    disk = open_disk(shard, rank, (layout.split, layout.weights), request.disk_bytes, place_on_disk)
    if connection.link is not None:
        return PipelinePart(shard, connection.link, layout.stages, layout.ranks - 1, disk, rank)
    assert connection.peers is not None, "a rank among several has somebody beside or behind it"
    return TensorPart(shard, connection.peers, disk, rank)


def rejoin(rank: int, part: Part, request: LoadRequest, inbox: Inbox, security: Security = PRIVATE) -> Part:
    """Meet the other ranks again, with the same part of the model."""
    inbox.clear(request.session)
    return part.connected_by(connect(rank, request, inbox, security))
