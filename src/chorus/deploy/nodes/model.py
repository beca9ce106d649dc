"""One model over nodes: what every load of it needs, and how it is planned for those that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from chorus.cluster.coordinator.parts import OwnParts
from chorus.cluster.coordinator.process import ConnectedNode
from chorus.cluster.transfer.share import SharedModel
from chorus.config.engine import EngineSpec
from chorus.config.sections import ShardingConfig
from chorus.config.settings import Settings
from chorus.deploy.groups.booking import Needs
from chorus.deploy.local_plan import rank_plans
from chorus.deploy.nodes.assumed import assumed_links
from chorus.deploy.nodes.cables import find_way
from chorus.deploy.nodes.deployment import (
    common_backend,
    deployment,
    facts_of_parts,
    held_by,
    less_context,
    preshard_shares,
    shares_of,
)
from chorus.deploy.nodes.group import ClusterGroup, Deployment, Served, Share, Wanted
from chorus.deploy.nodes.links import Routes, find_routes, own_place, place_of, talking_pairs
from chorus.deploy.nodes.meeting import Meeting
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.nodes.plan import HERE, is_given, offer_of, plan_for, wanted_context
from chorus.deploy.nodes.room import DoesNotHold, Fit, Offer
from chorus.models import LocalModel
from chorus.models.preshard.folder import Preshard, is_preshard, read_preshard
from chorus.planning.costs import MIB
from chorus.planning.facts import ModelFacts
from chorus.planning.plan import Plan
from chorus.platform.memory.ledger import Ledger
from chorus.platform.process.lifeline import Lifeline

UNPLANNED_CACHE = 256 * MIB
"""Of one rank, where nobody can say what a context takes."""


@dataclass
class SpreadModel:
    """A model that was found: planned anew whenever its group is started."""

    name: str
    settings: Settings
    meeting: Meeting
    options: ClusterOptions
    make_spec: Callable[[tuple[str, ...]], EngineSpec]
    held: OwnParts
    facts: ModelFacts | None
    """None of a model that was cut before."""
    cut: Preshard | None = None
    parts: tuple[SharedModel, ...] = ()
    """The folder of each rank of a model that was cut."""
    ledger: Ledger | None = None
    """Of this machine, where other models are served beside it."""
    report: Callable[[str], None] = lambda detail: None
    group: ClusterGroup | None = None
    """Its processes, while it is loaded."""
    predicted: dict[str, Any] = field(default_factory=dict)
    """The plan that they have, to be shown."""
    _served_as: EngineSpec | None = None

    @classmethod
    async def prepared(
        cls,
        settings: Settings,
        model: LocalModel,
        meeting: Meeting,
        options: ClusterOptions,
        make_spec: Callable[[tuple[str, ...]], EngineSpec],
        ledger: Ledger | None,
        report: Callable[[str], None],
    ) -> SpreadModel:
        """Offers its files to nodes; raises ModelError."""
        cut = read_preshard(model.path) if is_preshard(model.path) else None
        parts = preshard_shares(model, cut) if cut else ()
        for part in parts:
            meeting.door.files.offer(part)
        made: SpreadModel

        def progressed(detail: str) -> None:
            if made.group:
                made.group.progressed(detail)

        held = await asyncio.to_thread(OwnParts, model, meeting.door.files, progressed, meeting.identity)
        facts = None if cut else await asyncio.to_thread(facts_of_parts, model, held)
        made = cls(model.id, settings, meeting, options, make_spec, held, facts, cut, parts, ledger, report)
        return made

    def start(self, wanted: Wanted, lifeline: Lifeline, grace_seconds: float, promised: int) -> ClusterGroup:
        """The processes of its next load; `promised` is what they were counted for."""
        options = self.options
        served = Served(
            self.held.share.model,
            self.held.share.digest,
            self.meeting.door.port,
            options.environment,
            threads=options.threads or 0,
            log_level=self.make_spec(()).log_level,
            parts=self.held,
            name=self.name,
            here=options.here,
            ledger=self.ledger,
            promised=promised,
        )
        self.group = ClusterGroup(
            self.meeting.nodes,
            self.deploy,
            served,
            lifeline,
            grace_seconds,
            wanted,
            options.start_timeout_seconds,
            self.report,
            self.offer,
            options.replan_by_itself,
        )
        return self.group

    def ended(self) -> None:
        """Its processes are gone."""
        self.group, self.predicted = None, {}

    async def deploy(self, chosen: list[ConnectedNode], fit: Fit) -> Deployment:
        """Over these nodes; raises DoesNotHold where they have too little room."""
        options, first, cut, facts = self.options, self.make_spec(()), self.cut, self.facts
        backend = common_backend(chosen) if options.nodes_choose_transport else None
        self._tell("planning")
        asked = first.model_copy(update={"transport": backend}) if backend else first
        is_chosen = backend is not None or not options.nodes_choose_transport
        keep_order = cut is not None or is_given(first, len(chosen) + 1)
        way = await find_way(chosen, asked, is_chosen, options.rdma_devices, keep_order)
        chosen = way.nodes
        if cut and len(self.parts) != len(chosen) + 1:
            raise DoesNotHold(
                f"{self.held.share.folder} was made for {len(self.parts)} ranks and there are {len(chosen) + 1} "
                "machines: make it again for these, or serve the original model"
            )
        routes = await self._look_for_routes(chosen, way.transport, first.parallel)
        planned = self._served_as = first.model_copy(update={"transport": way.transport})
        left, sharding = self.ledger.free if self.ledger else None, self.settings.sharding
        made = await plan_for(chosen, facts, planned, sharding, routes, fit, options.here, left) if facts else None
        self.predicted = made.to_json() if made else {}
        nodes = self.meeting.nodes
        nodes.assumed.update(assumed_links(nodes.own_node_id, chosen, way.transport, routes))
        layers = cut.layers if cut else len(facts.layers) if facts else 0
        shares = self._shares(made, len(chosen) + 1) if self.ledger else ()
        identity, share = self.meeting.identity, self.held.share
        formed = deployment(way, share, layers, self.make_spec, identity, options, made, self.parts, routes, shares)
        return replace(formed, less=less_context(made, wanted_context(planned, facts)) if facts else "")

    async def offer(self, used: list[ConnectedNode], wanted: list[ConnectedNode], session: str) -> Offer | None:
        """What other nodes would bring."""
        spec, group = self._served_as, self.group
        if self.facts is None or spec is None or group is None:
            return None
        fraction = spec.memory_fraction
        taken = {node.node_id: held_by(node, session, fraction) for node in wanted}
        taken[HERE] = group.booked_here or int(fraction * group.held_bytes)
        left = self.ledger.free if self.ledger else None
        return await offer_of(used, wanted, self.facts, spec, self.settings.sharding, taken, left)

    def least(self, room: int) -> Needs:
        """The least that it takes of all machines together, however it is divided; `room` is what those have."""
        budget, engine = self.settings.cache.memory, self.settings.engine
        whole = engine.model_copy(update={"parallel": "pipeline", "split": None, "weights": None})
        undivided = self.settings.model_copy(update={"engine": whole, "sharding": ShardingConfig()})
        ranks = rank_plans(undivided, self.facts, 1, room) if self.facts else ()
        if ranks:
            fixed, cache = ranks[0].needed_bytes - ranks[0].cache_bytes, ranks[0].cache_bytes
        else:
            fixed, cache = sum(map(self._unplanned, self.parts or (self.held.share,))), UNPLANNED_CACHE
        return Needs(1, fixed, cache if budget is None else budget, budget is not None)

    def _shares(self, made: Plan | None, ranks: int) -> tuple[Share, ...]:
        budget = self.settings.cache.memory
        planned = made.ranks if made else rank_plans(self.settings, self.facts, ranks) if self.facts else ()
        if planned:
            return shares_of(planned, budget)
        cache = UNPLANNED_CACHE if budget is None else budget
        each = self.parts or [self.held.share] * ranks
        return tuple(Share(self._unplanned(part) + cache, self._unplanned(part) + cache) for part in each)

    def _unplanned(self, part: SharedModel) -> int:
        return sum(file.size for file in part.files) + self.settings.engine.reserve_mb * MIB

    def _tell(self, detail: str) -> None:
        if self.group:
            self.group.tell(detail)

    async def _look_for_routes(self, chosen: list[ConnectedNode], transport: str, parallel: str) -> Routes:
        if not chosen:
            return {}
        self._tell("looking for the quickest links")
        meeting = self.meeting
        here = own_place(meeting.identity, meeting.door_id, meeting.door.port, self.options.host, chosen)
        found = await find_routes([here, *map(place_of, chosen)], talking_pairs(transport, parallel, len(chosen) + 1))
        for rank, node in enumerate(chosen, 1):
            node.use(found[0, rank].ip, found[0, rank].bandwidth)
        return found
