"""What the ranks of this machine are started with: the plan decides once what each does with its weights.

Left to themselves, ranks that load at the same time would each look at memory that the others are about to take.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from chorus.cluster.config import Settings
from chorus.cluster.costs import MIB, Links, Node, Workload
from chorus.cluster.facts import ModelFacts, read_facts
from chorus.cluster.plan import PlanError
from chorus.cluster.planner import Wish, plan
from chorus.cluster.planner_nodes import LINK_KINDS
from chorus.cluster.planner_tensor import TENSOR_ARCHITECTURES
from chorus.cluster.profile import known_profile, node_of
from chorus.models import LocalModel, ModelError
from chorus.models.preshard import is_preshard
from chorus.platform import cores, device, memory
from chorus.shard.split import BadSplit, choose_split

log = logging.getLogger("chorus.serve")

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True)
class LocalPlan:
    policies: tuple[str, ...] = ()
    """Of each rank, for the engine; empty where the plan cannot say: then each rank decides."""
    shown: dict[str, Any] | None = None
    """For the status page; None before this machine was measured (`chorus plan` does)."""


def local_plan(settings: Settings, model: LocalModel) -> LocalPlan:
    """Nothing is measured here: starting must not wait for that. Memory is known without."""
    engine = settings.engine
    threads = engine.threads or cores.threads_per_rank(cores.usable_cores(), engine.ranks)
    if is_preshard(model.path) or engine.served_parallel == "hybrid":
        return LocalPlan()
    profile = known_profile(threads)
    names = [f"rank{rank}" for rank in range(engine.ranks)]
    if profile:
        nodes = [node_of(profile, name, engine.memory_fraction, engine.ranks) for name in names]
    else:
        room = int(memory.available_memory() * engine.memory_fraction) // engine.ranks
        nodes = [Node(name, device.backend(), room, flops=1.0, bandwidth=1.0) for name in names]
    try:
        facts = read_facts(model.path, model.id)
        context = min(context_of(settings, facts), facts.context)
        work = workload(settings, facts, max(1, min(512, context // 2)), max(1, min(256, context // 4)), 1)
        work = replace(work, context=context)
        made = plan(facts, nodes, Links(LINK_KINDS["loopback"]), work, _wish(settings, facts))
    except (ModelError, PlanError, BadSplit) as error:
        log.info("no plan for the ranks of this machine (%s): each decides how it keeps its weights", error)
        return LocalPlan()
    return LocalPlan(tuple(rank.policy_name for rank in made.ranks), made.to_json() if profile else None)


def context_of(settings: Settings, facts: ModelFacts) -> int:
    """What memory is planned for, unless the settings say."""
    return settings.engine.context or min(DEFAULT_CONTEXT, facts.context)


def workload(settings: Settings, facts: ModelFacts, prompt: int, output: int, concurrency: int) -> Workload:
    engine = settings.engine
    return Workload(
        prompt=prompt,
        output=output,
        concurrency=concurrency,
        context=context_of(settings, facts),
        chunk=engine.prefill_chunk,
        reserve=engine.reserve_mb * MIB,
        dtype=engine.dtype,
    )


def _wish(settings: Settings, facts: ModelFacts) -> Wish:
    """Exactly what will be started."""
    engine = settings.engine
    if engine.served_parallel == "tensor" and engine.ranks > 1:
        if facts.model_type not in TENSOR_ARCHITECTURES:
            raise PlanError(f"{facts.model_type} is divided evenly by mlx-lm itself")
        return Wish("uniform", parallel="tensor", weights=engine.weights)
    return Wish("custom", layers=choose_split(engine.split, len(facts.layers), engine.ranks))
