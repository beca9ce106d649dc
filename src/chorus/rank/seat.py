"""A rank takes its place: meets the others, then loads what the layout gives it. The leader does just the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from chorus.messages.proto import rank_pb2 as wire
from chorus.planning.layout import Layout
from chorus.planning.split import check_split, layers_of
from chorus.rank.join import join_group, open_link, stage_group
from chorus.rank.load import LoadedShard, load_shard, load_slices, own_folder
from chorus.rank.tensor.divide import TensorPlan
from chorus.transport.collective import CollectiveLink
from chorus.transport.links import Inbox, Link


@dataclass(frozen=True)
class Seat:
    shard: LoadedShard
    link: Link | None
    """To the stages before and after this one; None where there is only one."""
    peers: mx.distributed.Group | None
    """The ranks that share this one's layers; None where it has them alone."""

    @property
    def relay(self) -> CollectiveLink | None:
        """The link that takes sampled tokens to the first stage inside the graph; None where steps bring them."""
        if not isinstance(self.link, CollectiveLink) or self.shard.stage.every_stage_reads_tokens:
            return None
        return self.link if self.link.look_ahead else None


def take_seat(
    rank: int, path: Path, request: wire.LoadRequest, inbox: Inbox, progress: Callable[[int, int], None]
) -> Seat:
    """The group is formed first: every rank does it now, and one that cannot load says so a moment later."""
    inbox.clear(request.session)
    layout = layout_of(request)
    place = layout.place(rank)
    world = None if request.transport == "grpc" and layout.members == 1 else join_group(rank, request)
    peers = stage_group(world, layout, place) if world is not None and layout.members > 1 else None
    link = open_link(place, request, world, inbox) if layout.stages > 1 else None
    folder = own_folder(path, rank, layout.split, layout.weights if peers else None)
    options: dict[str, Any] = {
        "dtype": request.dtype,
        "policy": request.policies[rank] if request.policies else None,
        "memory_fraction": request.memory_fraction,
        "trust_remote_code": request.trust_remote_code,
    }

    def layers(total: int) -> range:
        return layers_of(place.stage, check_split(layout.split, total, layout.stages))

    if peers is None:
        return Seat(load_shard(folder, layers, **options, progress=progress), link, None)
    plan = TensorPlan(place.member, place.weights)
    return Seat(load_slices(folder, plan, peers, layers, **options, progress=progress), link, peers)


def layout_of(request: wire.LoadRequest) -> Layout:
    return Layout(tuple(request.split), tuple(request.weights))
