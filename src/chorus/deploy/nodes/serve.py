"""One model over the nodes of a cluster: rank 0 and the front end here, the other ranks started by agents."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chorus.cluster import status
from chorus.cluster.agent.process import Agent, AgentOptions
from chorus.cluster.coordinator.parts import OwnParts
from chorus.cluster.coordinator.process import Address, ConnectedNode, Nodes
from chorus.cluster.logs import device_log
from chorus.cluster.transfer.share import SharedFile, SharedModel, share_folder
from chorus.config.engine import EngineSpec
from chorus.config.sections import ShardingConfig
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    CannotServe,
    Listener,
    api_settings,
    find_access,
    find_model,
    listen,
    model_settings,
    only_model,
    run_announced,
    server_record,
    settings_of,
)
from chorus.deploy.groups.group import Given, Loadable
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.nodes.cables import Matrix, Way, find_way
from chorus.deploy.nodes.group import ClusterGroup, Deployment, RankOrder, Served
from chorus.deploy.nodes.links import Routes, find_routes, matrix, own_place, place_of, talking_pairs
from chorus.deploy.nodes.plan import HERE, is_given, offer_of, plan_for, wanted_context
from chorus.deploy.nodes.room import DoesNotHold, Fit, Offer
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_programs
from chorus.deploy.supervisor import Program
from chorus.models import LocalModel, ModelError, weight_map
from chorus.models.layer_names import files_for_layers
from chorus.models.preshard.folder import Preshard, is_preshard, rank_name, read_preshard
from chorus.planning.facts import ModelFacts, find_facts, read_facts
from chorus.planning.plan import Plan
from chorus.planning.split import choose_split, layers_of
from chorus.platform.ports import free_port
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.terminal import console
from chorus.security.authority import Authority
from chorus.security.identity import Identity, own_id
from chorus.security.names import member_address
from chorus.security.node_folder import DOOR_PORT, own_name, state_dir
from chorus.transport import catalog

READY_SECONDS = 15.0


@dataclass(frozen=True)
class ClusterOptions:
    peers: tuple[Address, ...] = ()
    hints: tuple[Address, ...] = ()
    """Where nodes may be met too; nobody need be there."""
    nodes: int | None = None
    """How many nodes besides this machine; None means those that are named, or those that are found."""
    here: str = field(default_factory=own_name)
    """What this machine is called, which leads."""
    names: tuple[str, ...] = ()
    """Names of the nodes in rank order, where that matters."""
    leader_port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    host: str = "0.0.0.0"
    port: int = DOOR_PORT
    discover: bool = True
    logs: Path = Path("logs")
    log_file: Path | None = None
    """Where a copy of all that is printed goes; None: logs has what this process itself says."""
    start_timeout_seconds: float = 600.0
    nodes_choose_transport: bool = False
    """Where this side has no preference, the one that all nodes were started with holds."""
    coordinator: str | None = None
    """host:port where ranks meet, for transports that need one place for it; None: it is found."""
    rdma_devices: Matrix | None = None
    """Over RDMA: which device each rank reaches each other rank by; None: the cables between the machines tell."""
    threads: int | None = None
    """CPU threads of each rank; None: what its node has."""
    timing: WatchTimes = DEFAULTS
    replan_by_itself: bool = False
    """When a node comes that makes the model much faster."""


def serve_over_nodes(
    settings: Settings, insecure: bool, options: ClusterOptions, ready_file: Path | None = None
) -> None:
    """Serve until a signal stops it; raises GaveUp when it cannot go on."""
    settings = settings_of(settings, only_model(settings, "a cluster"))
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        model = find_model(settings.model, for_nodes=True)
        divided = with_own_division(settings, model)
        try:
            asyncio.run(_serve(divided, model, listener, access, options, ready_file))
        except OSError as error:
            raise CannotServe(str(error)) from error


async def _serve(
    settings: Settings,
    model: LocalModel,
    listener: Listener,
    access: Access,
    options: ClusterOptions,
    ready_file: Path | None,
) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    address = engine_address(folder)
    # One rank to a machine: none of them shares its cores with another.
    alone = settings.model_copy(update={"engine": settings.engine.model_copy(update={"ranks": 1})})
    served = model_settings(settings, model, address, folder, (options.here,))
    log_file = options.log_file or device_log(options.logs, options.here)
    record = server_record(folder, listener, access, model.name, options.here, log_file)
    program = front_end_program(api_settings(settings, (served,), listener, access, record), folder)
    front_end = FrontEnd(program, lifeline, settings.api, settings.watch)
    shown = ""

    def report(detail: str) -> None:
        nonlocal shown
        if detail != shown:
            shown = detail
            console.print(f"[dim]{detail}[/]")

    url = access.url(listener)
    try:
        async with ranks_on_nodes(
            model,
            settings.sharding,
            lambda ranks: engine_spec(alone, model, folder, ranks),
            lifeline,
            ENGINE_GRACE_SECONDS,
            options,
            report,
        ) as ranks:
            given = Given(Loadable(served, settings.engine.ranks, lambda _: ranks))
            registry = Registry(given, settings.load, alone=True)
            registry.want_first([registry.add(settings.served[0], given.loadable)])
            control = Control(record, front_end, registry, ranks.replan)
            async with access.kept():
                await run_announced(front_end, registry, control, url, ready_file)
    finally:
        lifeline.cut()


@contextlib.asynccontextmanager
async def ranks_on_nodes(
    model: LocalModel,
    sharding: ShardingConfig,
    make_spec: Callable[[tuple[str, ...]], EngineSpec],
    lifeline: Lifeline,
    grace_seconds: float,
    options: ClusterOptions,
    report: Callable[[str], None] = lambda detail: None,
) -> AsyncIterator[ClusterGroup]:
    """A group for the supervisor whose followers run on other nodes, found and let in by this process."""
    state = state_dir()
    authority = Authority(state / "authority")
    identity = authority.coordinator(own_name())
    agent = Agent(
        AgentOptions(
            name=own_name(),
            state=state,
            logs=options.logs,
            log_name=options.here,
            host=options.host,
            port=_free_door(options.host, options.port),
            announce=False,
            timing=options.timing,
            lock=False,
        )
    )
    running = asyncio.create_task(agent.run())
    door_id = own_id(state / "identity")
    discover = options.discover and not options.peers
    nodes = Nodes(authority, identity, door_id, options.peers, discover, agent.registry, options.timing, options.hints)
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

        first = served_as = make_spec(())
        cut = read_preshard(model.path) if is_preshard(model.path) else None
        parts = preshard_shares(model, cut) if cut else ()
        for part in parts:
            agent.files.offer(part)
        group: ClusterGroup
        held = await asyncio.to_thread(OwnParts, model, agent.files, lambda detail: group.progressed(detail), identity)
        facts = None if cut else await asyncio.to_thread(facts_of_parts, model, held)

        async def look_for_routes(chosen: list[ConnectedNode], transport: str, parallel: str) -> Routes:
            if not chosen:
                return {}
            report("looking for the quickest links")
            here = own_place(identity, door_id, agent.port, options.host, chosen)
            found = await find_routes(
                [here, *map(place_of, chosen)], talking_pairs(transport, parallel, len(chosen) + 1)
            )
            for rank, node in enumerate(chosen, 1):
                node.use(found[0, rank].ip, found[0, rank].bandwidth)
            return found

        async def deploy(chosen: list[ConnectedNode], fit: Fit) -> Deployment:
            nonlocal predicted, served_as
            backend = common_backend(chosen) if options.nodes_choose_transport else None
            report("planning")
            wanted = first.model_copy(update={"transport": backend}) if backend else first
            is_chosen = backend is not None or not options.nodes_choose_transport
            keep_order = cut is not None or is_given(first, len(chosen) + 1)
            way = await find_way(chosen, wanted, is_chosen, options.rdma_devices, keep_order)
            chosen = way.nodes
            if cut and len(parts) != len(chosen) + 1:
                raise DoesNotHold(
                    f"{model.path} was made for {len(parts)} ranks and there are {len(chosen) + 1} machines: "
                    "make it again for these, or serve the original model"
                )
            routes = await look_for_routes(chosen, way.transport, first.parallel)
            planned = served_as = first.model_copy(update={"transport": way.transport})
            made = await plan_for(chosen, facts, planned, sharding, routes, fit, options.here) if facts else None
            predicted = made.to_json() if made else {}
            layers = cut.layers if cut else len(facts.layers) if facts else 0
            formed = deployment(way, held.share, layers, make_spec, identity, options, made, parts, routes)
            return replace(formed, less=less_context(made, wanted_context(planned, facts)) if facts else "")

        async def offer(used: list[ConnectedNode], wanted: list[ConnectedNode], session: str) -> Offer | None:
            if facts is None:
                return None
            fraction = served_as.memory_fraction
            taken = {node.node_id: held_by(node, session, fraction) for node in wanted}
            taken[HERE] = int(fraction * group.held_bytes)
            return await offer_of(used, wanted, facts, served_as, sharding, taken)

        served = Served(
            held.share.model,
            held.share.digest,
            agent.port,
            options.environment,
            threads=options.threads or 0,
            log_level=first.log_level,
            parts=held,
        )
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
            offer,
            options.replan_by_itself,
        )
        writer = asyncio.create_task(
            status.keep_written(folder / status.FILE_NAME, nodes, time.time(), lambda: predicted, lambda: group.notice)
        )
        yield group
    finally:
        if writer:
            writer.cancel()
        await nodes.stop()
        agent.stop()
        await asyncio.gather(running, *([writer] if writer else []), return_exceptions=True)


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
) -> Deployment:
    """Rank 0 here, the nodes after it in their order; each is sent only the files that hold its layers, or its own part
    of a model that was cut before.
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
        if parts:
            return RankOrder(node, rank, parts[rank].files, parts[rank].digest, needs, budget is None)
        files = needed_files(share, layers_of(rank if pipeline else 0, split), layers, not pipeline)
        return RankOrder(node, rank, files, "", needs, budget is None)

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
    return Deployment(orders, leader, own, ways, apart=not catalog.get(way.transport).collective)


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


def _free_door(host: str, port: int) -> int:
    """The usual port, or 0 for any where an agent of this machine has it."""
    return port if port and free_port(host, port) else 0
