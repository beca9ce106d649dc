"""Serving over the nodes of a cluster: `chorus serve --cluster`, and what `chorus up` runs on the first host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chorus.cli.processes import rank_programs
from chorus.cli.up_plan import is_given, plan_for
from chorus.cluster import status
from chorus.cluster.agent import Agent, AgentOptions
from chorus.cluster.agent_paths import DOOR_PORT, node_id, own_name, state_dir
from chorus.cluster.config_tree import ShardingConfig
from chorus.cluster.coordinator import Address, Node, Nodes
from chorus.cluster.coordinator_group import ClusterGroup, Deployment, RankOrder, Served
from chorus.cluster.facts import read_facts
from chorus.cluster.supervisor import Group, Program
from chorus.cluster.transfer import Share, SharedFile, share_folder
from chorus.cluster.trust import Authority
from chorus.engine.spec import EngineSpec
from chorus.models import LocalModel, weight_map
from chorus.models.layers import files_for_layers
from chorus.platform.lifeline import Lifeline
from chorus.shard.split import choose_split, layers_of

READY_SECONDS = 15.0


@dataclass(frozen=True)
class ClusterOptions:
    peers: tuple[Address, ...] = ()
    nodes: int | None = None
    """How many besides this machine; None: those named, or those found."""
    names: tuple[str, ...] = ()
    """In rank order, where that matters."""
    leader_port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    host: str = "0.0.0.0"
    port: int = DOOR_PORT
    discover: bool = True
    logs: Path = Path("logs")
    start_timeout_seconds: float = 600.0
    nodes_choose_transport: bool = False
    """Where this side has no preference, the one that all nodes were started with holds."""


@contextlib.asynccontextmanager
async def ranks_on_nodes(
    model: LocalModel,
    sharding: ShardingConfig,
    make_spec: Callable[[tuple[str, ...]], EngineSpec],
    lifeline: Lifeline,
    grace_seconds: float,
    options: ClusterOptions,
    report: Callable[[str], None] = lambda detail: None,
) -> AsyncIterator[Group]:
    """A group for the supervisor whose followers run on other nodes, found and let in by this process."""
    state = state_dir()
    authority = Authority(state / "authority")
    identity = authority.coordinator(own_name(), node_id(state))
    share = share_folder(model.name, model.path)
    agent = Agent(
        AgentOptions(
            name=own_name(),
            state=state,
            logs=options.logs,
            host=options.host,
            port=_free_door(options.host, options.port),
            announce=False,
            lock=False,
        )
    )
    agent.files.offer(share)
    running = asyncio.create_task(agent.run())
    nodes = Nodes(
        authority, identity, node_id(state), options.peers, options.discover and not options.peers, agent.registry
    )
    writer: asyncio.Task[None] | None = None
    predicted: dict[str, Any] = {}
    try:
        ready = asyncio.create_task(agent.ready.wait())
        await asyncio.wait([ready, running], timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            running.result()
        await nodes.start()
        folder = lifeline.path.parent

        first = make_spec(())
        facts = await asyncio.to_thread(read_facts, model.path, model.name)

        async def deploy(chosen: list[Node]) -> Deployment:
            nonlocal predicted
            backend = common_backend(chosen) if options.nodes_choose_transport else None
            report("planning")
            made = await plan_for(chosen, facts, first, sharding)
            given = first.split if is_given(first, len(chosen) + 1) else None
            split, predicted = (made.split, made.to_json()) if made else (given, {})
            return deployment(
                chosen, share, len(facts.layers), make_spec, identity.folder, folder, options, split, backend
            )

        served = Served(model.name, share.digest, agent.port, options.environment, log_level=first.log_level)
        group = ClusterGroup(
            nodes,
            deploy,
            served,
            lifeline,
            grace_seconds,
            options.nodes,
            options.names,
            options.start_timeout_seconds,
            report,
        )
        writer = asyncio.create_task(
            status.keep_written(folder / status.FILE_NAME, nodes, time.time(), lambda: predicted)
        )
        yield group
    finally:
        if writer:
            writer.cancel()
        await nodes.stop()
        agent.stop()
        await asyncio.gather(running, *([writer] if writer else []), return_exceptions=True)


def deployment(
    nodes: list[Node],
    share: Share,
    layers: int,
    make_spec: Callable[[tuple[str, ...]], EngineSpec],
    identity: Path,
    folder: Path,
    options: ClusterOptions,
    split: tuple[int, ...] | None = None,
    transport: str | None = None,
) -> Deployment:
    """Rank 0 here, the nodes after it in their order; each is sent only the files that hold its layers."""
    ranks = len(nodes) + 1
    spec = make_spec(())
    split = choose_split(split, layers, ranks)
    orders = tuple(
        RankOrder(node, rank, needed_files(share, layers_of(rank, split), layers, spec.parallel == "tensor"))
        for rank, node in enumerate(nodes, 1)
    )

    def leader(addresses: tuple[str, ...]) -> Program:
        port = options.leader_port or (_free_port(nodes[0].own_ip) if nodes else 0)
        own = (f"{nodes[0].own_ip}:{port}", *addresses) if nodes else ()
        pipeline = spec.parallel == "pipeline"
        chosen = {"identity": identity, "model": share.model, "split": split if pipeline else None}
        final = make_spec(own).model_copy(update={**chosen, **({"transport": transport} if transport else {})})
        program = rank_programs(final, folder)[0]
        return replace(program, environment={**program.environment, **options.environment})

    return Deployment(orders, leader)


def common_backend(nodes: list[Node]) -> str | None:
    wishes = {node.state.backend for node in nodes}
    wish = wishes.pop() if len(wishes) == 1 else ""
    return wish if wish not in ("", "auto") else None


def needed_files(share: Share, layers: range, total: int, everything: bool) -> tuple[SharedFile, ...]:
    mapping = weight_map(share.folder)
    wanted = set(files_for_layers(mapping, layers, total)) if mapping and not everything else None
    return tuple(
        file for file in share.files if wanted is None or not file.name.endswith(".safetensors") or file.name in wanted
    )


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def _free_door(host: str, port: int) -> int:
    """The usual port, or any where an agent of this machine has it."""
    try:
        with socket.create_server((host, port)):
            return port
    except OSError:
        return 0
