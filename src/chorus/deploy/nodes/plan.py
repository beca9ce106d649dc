"""Who holds which layers, planned from what the nodes themselves measured."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

import grpc.aio

from chorus.cluster.coordinator.process import ConnectedNode
from chorus.cluster.profile.machine import ProfileError, node_of, profile
from chorus.config.engine import EngineSpec
from chorus.config.sections import ShardingConfig
from chorus.deploy.nodes.links import Routes
from chorus.deploy.nodes.room import DoesNotHold, Fit, Offer
from chorus.deploy.room import HERE, Need
from chorus.deploy.supervisor import GaveUp
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.models.architectures import tensor_rule
from chorus.planning.asked import asked_request
from chorus.planning.costs import ETHERNET, METAL_SUM_SECONDS, MIB, Links, LinkSpeed, Machine, Workload
from chorus.planning.facts import ModelFacts
from chorus.planning.measured import known_sum
from chorus.planning.nodes import LINK_KINDS
from chorus.planning.plan import DoesNotFit, Plan, PlanError
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest, WantedParallel
from chorus.platform.cpu import cores
from chorus.transport import catalog

log = logging.getLogger("chorus.coordinator")

PROFILE_SECONDS = 240.0
CONTEXT = 8192
LEAST_CONTEXT = 2048
"""A rank that has no room for a request of so many tokens does not load."""

_PLANS_KEPT = 256
"""Whoever waits for room asks again and again whether there is some."""

Left = Callable[[], int]
"""What may still be booked of this machine; may wait for a file that is locked."""


async def plan_for(
    nodes: list[ConnectedNode],
    facts: ModelFacts,
    spec: EngineSpec,
    sharding: ShardingConfig,
    routes: Routes | None = None,
    fit: Fit = Fit.AS_ASKED,
    here: str = HERE,
    left: Left | None = None,
) -> Plan | None:
    """Over this machine, which is called `here`, and the nodes, in their order: layers, or weights where slices are
    served. None where it is not ours to plan. Raises DoesNotHold where there is too little room. `left` says how much
    of this machine is not booked, where that counts.
    """
    ranks = len(nodes) + 1
    if (not nodes and fit is Fit.AS_ASKED) or is_given(spec, ranks) or not _can_plan(spec, facts, ranks):
        return None
    try:
        machines = await measured(nodes, spec.memory_fraction, left)
        machines[0] = replace(machines[0], name=name_here(here, nodes))
    except (ProfileError, grpc.aio.AioRpcError) as error:
        told = why_failed(error, "an agent is gone") if isinstance(error, grpc.aio.AioRpcError) else error
        log.warning("the layers are divided evenly, for want of figures from every node: %s", told)
        return None
    links = links_between(nodes, spec.transport, routes or {}, machines)
    made = planned(machines, links, facts, spec, sharding, fit)
    for rank in made.ranks:
        held = f"weight {rank.share}" if made.parallel == "tensor" else f"layers {rank.first_layer}-{rank.last_layer}"
        log.info("rank %d on %s: %s, %s", rank.rank, rank.node, held, rank.numbers)
    return made


def name_here(name: str, nodes: Sequence[ConnectedNode]) -> str:
    """This machine's name in a plan, where every name stands for one machine: a node may be on this one, too."""
    return HERE if any(node.name == name for node in nodes) else name


def planned(
    machines: Sequence[Machine],
    links: Links,
    facts: ModelFacts,
    spec: EngineSpec,
    sharding: ShardingConfig,
    fit: Fit = Fit.AS_ASKED,
) -> Plan:
    """With the context that was asked for; where less will do, with the largest half, quarter, … of it that fits."""
    context, request = wanted_context(spec, facts), plan_request(spec, sharding, len(machines))
    while True:
        made = partial(plan, facts, links=links, work=workload(spec, context), request=request)
        try:
            return made(machines)
        except DoesNotFit as error:
            if fit is not Fit.LESS or context // 2 < LEAST_CONTEXT:
                raise DoesNotHold(str(error), _missing(machines, made, error)) from None
            context //= 2
        except PlanError as error:
            raise GaveUp(str(error)) from None


def _missing(
    machines: Sequence[Machine], made: Callable[[Sequence[Machine]], Plan], error: DoesNotFit
) -> tuple[Need, ...]:
    """What would mend it: of which machine, only another plan can tell."""
    names = [HERE, *(machine.name for machine in machines[1:])]

    @lru_cache(_PLANS_KEPT)
    def fits(more: tuple[int, ...]) -> bool:
        try:
            made([replace(each, memory=each.memory + extra) for each, extra in zip(machines, more, strict=True)])
        except PlanError:
            return False
        return True

    return (Need(error.missing, frozenset(names), lambda more: fits(tuple(more.get(name, 0) for name in names))),)


def wanted_context(spec: EngineSpec, facts: ModelFacts) -> int:
    return facts.longest(spec.context) if spec.context else min(CONTEXT, facts.context)


def workload(spec: EngineSpec, context: int) -> Workload:
    prompt, output = min(512, context // 2), min(256, context // 4)
    return Workload(
        prompt,
        output,
        context=context,
        chunk=spec.planned_chunk,
        reserve=spec.reserve_mb * MIB,
        dtype=spec.dtype,
        cpu_products=spec.cpu_products,
        pack=spec.pack,
        kv_bits=spec.kv_bits,
    )


async def offer_of(
    used: list[ConnectedNode],
    wanted: list[ConnectedNode],
    facts: ModelFacts,
    spec: EngineSpec,
    sharding: ShardingConfig,
    held: Mapping[str, int],
    left: Left | None = None,
) -> Offer | None:
    """What the wanted nodes would bring in place of the used ones; None where it is not ours to plan. `held` is what
    is taken by ranks of ours now, by node id and here under HERE: they give it back first.
    """
    if is_given(spec, len(wanted) + 1) or not _can_plan(spec, facts, len(wanted) + 1):
        return None
    try:
        machines = await measured(wanted, spec.memory_fraction, left)
    except (ProfileError, grpc.aio.AioRpcError, grpc.aio.UsageError):
        return None
    ids = [HERE, *(node.node_id for node in wanted)]
    freed = [
        replace(machine, memory=machine.memory + held.get(key, 0)) for machine, key in zip(machines, ids, strict=True)
    ]
    there = [freed[0], *(freed[ids.index(node.node_id)] for node in used if node.node_id in ids)]
    try:
        then = planned(freed, links_between(wanted, spec.transport, {}, freed), facts, spec, sharding)
    except GaveUp:
        return None
    try:
        now = planned(there, links_between(used, spec.transport, {}, there), facts, spec, sharding)
    except GaveUp:
        return Offer(0.0, then.prediction.tokens_per_second)
    return Offer(now.prediction.tokens_per_second, then.prediction.tokens_per_second)


def is_given(spec: EngineSpec, ranks: int) -> bool:
    """Whether the user laid down what every rank holds: then nothing needs to be measured."""
    given = spec.weights if spec.parallel == "tensor" else spec.split
    return given is not None and len(given) == ranks


def _can_plan(spec: EngineSpec, facts: ModelFacts, ranks: int) -> bool:
    """What mlx-lm divides itself it divides evenly; more ranks than key/value groups only go by hand."""
    if ranks == 1:
        return True
    if spec.parallel == "tensor":
        return tensor_rule(facts.model_type) is not None and ranks <= facts.groups
    return spec.parallel == "pipeline"


def plan_request(spec: EngineSpec, sharding: ShardingConfig, ranks: int) -> PlanRequest:
    """What to ask of the planner: a division for this many ranks holds, and who named nodes wants all of them used."""
    parallel: WantedParallel = "tensor" if spec.parallel == "tensor" and ranks > 1 else "pipeline"
    if spec.split:
        log.warning("the split that was asked for is not for %d ranks: dividing the layers again", ranks)
    return asked_request(sharding, ranks, parallel, "balanced")


def machine_of(told: Mapping[str, Any]) -> Machine:
    """A node as its agent describes it; another release may say more than this one knows."""
    known = {field.name for field in fields(Machine)}
    return Machine(**{name: value for name, value in told.items() if name in known})


async def measured(nodes: list[ConnectedNode], fraction: float, left: Left | None = None) -> list[Machine]:
    """This machine and the nodes, each with what may still be booked of it."""
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    own, *others = await asyncio.gather(
        asyncio.to_thread(profile, threads),
        *(node.stub.Profile(wire.ProfileRequest(memory_fraction=fraction), timeout=PROFILE_SECONDS) for node in nodes),
    )
    told = [machine_of(json.loads(reply.node)) for reply in others]
    named = [replace(machine, name=node.name) for machine, node in zip(told, nodes, strict=True)]
    here = node_of(own, HERE, fraction)
    return [replace(here, memory=await asyncio.to_thread(left)) if left else here, *named]


def links_between(
    nodes: list[ConnectedNode], transport: str, routes: Routes, machines: Sequence[Machine] = ()
) -> Links:
    """From here to each node as its agent answers; on other ways, as the two ends have tried them. What sums over these
    nodes took when they ran last goes over every estimate.
    """
    names = [machines[0].name if machines else HERE, *(node.name for node in nodes)]
    call = catalog.get(catalog.DEFAULT).call_seconds or 0.0
    metal = any(machine.backend == "metal" for machine in machines)
    known = {
        (0, rank): (node.met.ip, link_over(transport, node.round_trip_ms, node.bandwidth, metal))
        for rank, node in enumerate(nodes, 1)
    }
    for (one, other), route in sorted(routes.items()):
        if known.get((one, other), ("", None))[0] != route.ip:
            as_call = (route.round_trip + 2 * call) * 1e3
            known[one, other] = route.ip, link_over(transport, as_call, route.bandwidth, metal)
    usual = LINK_KINDS["rdma"] if catalog.get(transport).rdma else ETHERNET
    pairs = {(names[one], names[other]): link for (one, other), (_, link) in known.items()}
    if seconds := known_sum(transport, [node.node_id for node in nodes]):
        usual = replace(usual, all_reduce=seconds)
        pairs = {pair: replace(link, all_reduce=seconds) for pair, link in pairs.items()}
    return Links(usual, tuple((one, other, link) for (one, other), link in pairs.items()))


def link_over(transport: str, round_trip_ms: float, bandwidth: float | None, metal: bool = False) -> LinkSpeed:
    """The link to a node: as fast as was measured when it came, with the latency of its agent's answers.

    Those come over gRPC, so what a call costs there is in them and what it costs with this transport is not. Of RDMA
    they tell nothing: it has published figures until the cluster has run.
    """
    row, measured = catalog.get(transport), round_trip_ms / 2e3
    if row.rdma:
        return LINK_KINDS["rdma"]
    latency = max(0.0, measured + (row.call_seconds or 0.0) - (catalog.get(catalog.DEFAULT).call_seconds or 0.0))
    crossing = METAL_SUM_SECONDS if metal else 0.0
    sums = None if row.sum_seconds is None else measured + row.sum_seconds + crossing
    return LinkSpeed(latency, bandwidth or ETHERNET.bandwidth, sums)
