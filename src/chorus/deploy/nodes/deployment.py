"""From a plan to what each node is told to run, and what rank 0 is started with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chorus.cluster.coordinator.parts import OwnParts
from chorus.cluster.coordinator.process import ConnectedNode
from chorus.cluster.transfer.share import SharedFile, SharedModel, share_folder
from chorus.config.engine import EngineSpec
from chorus.deploy.nodes.cables import Way
from chorus.deploy.nodes.group import Deployment, RankOrder, Share
from chorus.deploy.nodes.links import Routes, matrix
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.nodes.plan import is_given
from chorus.deploy.programs import rank_programs
from chorus.deploy.supervisor import Program
from chorus.models import LocalModel, ModelError, weight_map
from chorus.models.layer_names import files_for_layers
from chorus.models.preshard.folder import Preshard, rank_name
from chorus.planning.facts import ModelFacts, find_facts, read_facts
from chorus.planning.plan import Plan, RankPlan
from chorus.planning.split import choose_split, layers_of
from chorus.platform.network.ports import free_port
from chorus.security.identity import Identity
from chorus.security.names import member_address
from chorus.transport import catalog


def deployment(
    way: Way,
    share: SharedModel,
    layers: int,
    make_spec: Callable[[tuple[str, ...]], EngineSpec],
    identity: Identity,
    options: ClusterOptions,
    made: Plan | None = None,
    parts: Sequence[SharedModel] = (),
    routes: Routes | None = None,
    shares: Sequence[Share] = (),
) -> Deployment:
    """Rank 0 here, the nodes after it in their order; each is sent only the files that hold its layers, or its own part
    of a model that was cut before. `shares` are what the ranks of one of several models may take.
    """
    nodes = way.nodes
    ranks, ways = len(nodes) + 1, routes or {}
    spec = make_spec(())
    pipeline = spec.parallel == "pipeline"
    given = spec.split if is_given(spec, ranks) else None
    split = choose_split(
        made.split if made and pipeline else given if pipeline else None, layers, ranks if pipeline else 1
    )
    budget = spec.cache.memory

    def order(rank: int, node: ConnectedNode) -> RankOrder:
        needs = made.ranks[rank].booked_bytes(budget) if made else 0
        of = shares[rank] if shares else Share(needs)
        if parts:
            return RankOrder(node, rank, parts[rank].files, parts[rank].digest, of.needs, budget is None, of.most)
        files = needed_files(share, layers_of(rank if pipeline else 0, split), layers, not pipeline)
        return RankOrder(node, rank, files, "", of.needs, budget is None, of.most)

    orders = tuple(order(rank, node) for rank, node in enumerate(nodes, 1))

    def leader(addresses: tuple[str, ...]) -> Program:
        # One address where all ranks come to the same one, every address where they come by several cables.
        come_to = {route.ip for pair, route in ways.items() if pair[1] == 0} or {node.own_ip for node in nodes}
        host = come_to.pop() if len(come_to) == 1 else options.host
        port = options.leader_port or (free_port(host) if nodes else None) or 0
        own = (member_address(identity.member.node_id, host, port), *addresses) if nodes else ()
        chosen: dict[str, Any] = {
            "identity": identity.folder,
            "model": share.model,
            "split": split if pipeline else None,
            "routes": matrix(ways, ranks) if ways else (),
            "transport": way.transport,
            "rdma_devices": way.rdma_devices,
            "coordinator": options.coordinator or way.new_meeting_place(),
        }
        if made:
            chosen["policies"] = tuple(rank.policy_name for rank in made.ranks)
        if made and made.parallel == "tensor":
            chosen["weights"] = made.split
        program = rank_programs(make_spec(own).model_copy(update=chosen))[0]
        return replace(program, environment={**program.environment, **options.environment})

    own = () if parts else needed_files(share, layers_of(0, split), layers, not pipeline)
    here = shares[0] if shares else Share()
    return Deployment(orders, leader, own, ways, apart=not catalog.get(way.transport).collective, here=here)


def shares_of(ranks: Sequence[RankPlan], budget: int | None) -> tuple[Share, ...]:
    """What each takes and, where its cache was given no budget, has enough with: another context beside the planned."""
    needs = [rank.booked_bytes(budget) for rank in ranks]
    more = [rank.cache_bytes if budget is None else 0 for rank in ranks]
    return tuple(Share(least, least + extra) for least, extra in zip(needs, more, strict=True))


def less_context(made: Plan | None, wanted: int) -> str:
    """What a plan has less of than was asked for, in words."""
    if made is None or made.workload.context >= wanted:
        return ""
    return f"room for a context of {made.workload.context:,} tokens, not {wanted:,}"


def held_by(node: ConnectedNode, session: str, fraction: float) -> int:
    """What a plan finds more on a node when a session's ranks are gone."""
    ranks = [rank for rank in node.state.ranks if rank.session == session and rank.running]
    return sum(rank.booked_bytes or int(fraction * rank.memory_bytes) for rank in ranks)


def facts_of_parts(model: LocalModel, held: OwnParts) -> ModelFacts:
    """The facts of a model; the hub tells the headers of files that are not here."""
    return find_facts(held.share.model) if held.absent else read_facts(model.path, model.name)


def preshard_shares(model: LocalModel, cut: Preshard) -> tuple[SharedModel, ...]:
    """Each rank's folder is offered on its own: a node gets its part and nothing else."""
    folders = [model.path / rank_name(rank) for rank in range(len(cut.division.parts))]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise ModelError(
            f"{missing[0]} is missing: nodes get their parts from here; copy it here, or cut the model again"
        )
    return tuple(share_folder(model.name, folder) for folder in folders)


def common_backend(nodes: list[ConnectedNode]) -> str | None:
    wishes = {node.state.backend for node in nodes}
    wish = wishes.pop() if len(wishes) == 1 else ""
    return wish if wish not in ("", catalog.AUTO) else None


def needed_files(share: SharedModel, layers: range, total: int, everything: bool) -> tuple[SharedFile, ...]:
    mapping = weight_map(share.folder)
    wanted = set(files_for_layers(mapping, layers, total)) if mapping and not everything else None
    return tuple(
        file for file in share.files if wanted is None or not file.name.endswith(".safetensors") or file.name in wanted
    )
