"""What the ranks of this machine are started with: the plan decides once what each does with its weights.

Left to themselves, ranks that load at the same time would each look at memory that the others are about to take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from chorus.cluster.profile.machine import known_profile, node_of
from chorus.config.settings import Settings
from chorus.deploy.preshard import cut_facts, slice_facts
from chorus.errors import ChorusError
from chorus.models import LocalModel, ModelError
from chorus.models.architectures import tensor_rule
from chorus.models.preshard.folder import is_preshard
from chorus.planning.asked import asked_request
from chorus.planning.costs import MIB, Links, Machine, Workload
from chorus.planning.facts import ModelFacts, read_facts
from chorus.planning.layout import shape
from chorus.planning.nodes import LINK_KINDS
from chorus.planning.plan import Plan, PlanError, RankPlan
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest
from chorus.planning.split import SplitError, choose_split
from chorus.platform.accelerator import device
from chorus.platform.cpu import cores, products
from chorus.platform.memory import amounts

log = logging.getLogger("chorus.serve")

DEFAULT_CONTEXT = 8192
_ENOUGH = 1 << 60
"""Memory of a machine that anything fits into."""


@dataclass(frozen=True)
class LocalPlan:
    policies: tuple[str, ...] = ()
    """How each rank keeps its weights; empty where the plan cannot say and each rank decides."""
    shown: dict[str, Any] | None = None
    """The plan for the status page; None before this machine was measured (`chorus plan` does)."""
    division: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The split or the weights, where the settings name a strategy or proportions for them."""
    ranks: tuple[RankPlan, ...] = ()
    """What each rank holds and takes; empty where there is no plan."""


class CannotDivide(ChorusError):
    """The model cannot be divided as the settings lay down."""


def local_plan(settings: Settings, model: LocalModel, room: int | None = None) -> LocalPlan:
    """Plan without measuring anything: starting must not wait for that, and memory is known without. `room` is what the
    ranks may take together where somebody else keeps count of it; None: a part of what is free now.
    """
    engine = settings.engine
    threads = engine.threads or cores.threads_per_rank(cores.usable_cores(), engine.ranks)
    profile = known_profile(threads)
    names = [f"rank{rank}" for rank in range(engine.ranks)]
    if profile:
        nodes = [node_of(profile, name, engine.memory_fraction, engine.ranks) for name in names]
    else:
        free = amounts.usable_unmeasured(device.backend(), engine.memory_fraction) // engine.ranks
        kernels = {"kernel_flops": 1.0, "kernel_bandwidth": 1.0} if products.installed() else {}
        nodes = [Machine(name, device.backend(), free, flops=1.0, bandwidth=1.0, **kernels) for name in names]
    if room is not None:
        nodes = [replace(node, memory=room // engine.ranks) for node in nodes]
    laid_down = settings.sharding.custom_proportions if _strategy_decides(settings) else None
    if laid_down and engine.served_parallel == "hybrid":
        raise CannotDivide("sharding.custom_proportions: a hybrid is given the layers of each stage: use engine.split")
    try:
        if is_preshard(model.path) and engine.served_parallel == "tensor":
            slices = _planned_slices(settings, model, nodes)
            return LocalPlan(tuple(rank.policy_name for rank in slices), ranks=slices)
        facts = cut_facts(model.path) if is_preshard(model.path) else read_facts(model.path, model.id)
        links = Links(LINK_KINDS["loopback"])
        made = plan(facts, nodes, links, usual_work(settings, facts), _request(settings, facts))
    except (ModelError, PlanError, SplitError) as error:
        why = str(error).rstrip(".")
        if laid_down:
            raise CannotDivide(f"sharding.custom_proportions: {why}") from None
        log.info("no plan for the ranks of this machine (%s): each decides how it keeps its weights", why)
        return LocalPlan()
    policies = tuple(rank.policy_name for rank in made.ranks)
    return LocalPlan(policies, made.to_json() if profile else None, _division(settings, made), made.ranks)


def rank_needs(settings: Settings, model: LocalModel, ranks: int) -> tuple[int, ...]:
    """What the part of each rank takes in all, itself too: those on other machines are taken for machines like this
    one, since a hostfile tells nothing of them. Empty where the planner cannot say.
    """
    return tuple(rank.booked_bytes(settings.cache.memory) for rank in planned_ranks(settings, model, ranks))


def planned_ranks(settings: Settings, model: LocalModel, ranks: int) -> tuple[RankPlan, ...]:
    """What each rank holds and takes, on machines like this one; empty where the planner cannot say."""
    try:
        facts = cut_facts(model.path) if is_preshard(model.path) else read_facts(model.path, model.id)
    except ModelError as error:
        log.info("what the ranks take is not known (%s)", str(error).rstrip("."))
        return ()
    return rank_plans(settings, facts, ranks)


def rank_plans(settings: Settings, facts: ModelFacts, ranks: int, memory: int = _ENOUGH) -> tuple[RankPlan, ...]:
    """The same from the facts of a model, on machines that have so much memory each."""
    engine = settings.engine.model_copy(update={"ranks": ranks})
    settings = settings.model_copy(update={"engine": engine})
    kernels = {"kernel_flops": 1.0, "kernel_bandwidth": 1.0} if products.installed() else {}
    nodes = [Machine(f"rank{rank}", device.backend(), memory, 1.0, 1.0, **kernels) for rank in range(ranks)]
    try:
        work, request = usual_work(settings, facts), _request(settings, facts)
        return plan(facts, nodes, Links(LINK_KINDS["loopback"]), work, request).ranks
    except (ModelError, PlanError, SplitError) as error:
        log.info("what the ranks take is not known (%s)", str(error).rstrip("."))
        return ()


def budget_of(settings: Settings) -> int | Callable[[], int] | None:
    """What all models of this machine may take together, or what measures it; None: only its device knows, and nobody
    has asked it so far.
    """
    engine, backend = settings.engine, device.backend()
    if settings.load.memory is not None:
        return settings.load.memory
    if backend != "cuda":
        return partial(amounts.usable_unmeasured, backend, engine.memory_fraction)
    profile = known_profile(engine.threads or cores.threads_per_rank(cores.usable_cores(), engine.ranks))
    return profile.usable_memory(engine.memory_fraction) if profile else None


def _strategy_decides(settings: Settings) -> bool:
    """Whether a strategy says what each rank holds: where a split or weights do, or nobody does, none is asked."""
    engine = settings.engine
    given = engine.weights if engine.served_parallel == "tensor" else engine.split
    return engine.ranks > 1 and not given and settings.sharding.strategy != "auto"


def _division(settings: Settings, made: Plan) -> dict[str, tuple[int, ...]]:
    if not _strategy_decides(settings):
        return {}
    return {"weights": made.weights} if made.parallel == "tensor" else {"split": made.split}


def _planned_slices(settings: Settings, model: LocalModel, nodes: Sequence[Machine]) -> tuple[RankPlan, ...]:
    """Each rank's slices are a narrow model of their own. Sums need one number type: where one rank must keep its
    weights packed, and would use another, all do as it does.
    """
    made: list[RankPlan] = []
    for rank, node in enumerate(nodes):
        facts = slice_facts(model.path, rank)
        request = PlanRequest("custom", layers=(len(facts.layers),))
        made += plan(facts, [node], Links(), usual_work(settings, facts), request).ranks
    if len({rank.dtype for rank in made}) > 1:
        made = [next(rank for rank in made if not rank.dequantize)] * len(made)
    return tuple(made)


def usual_work(settings: Settings, facts: ModelFacts) -> Workload:
    context = facts.longest(context_of(settings, facts))
    work = workload(settings, facts, max(1, min(512, context // 2)), max(1, min(256, context // 4)), 1)
    return replace(work, context=context)


def context_of(settings: Settings, facts: ModelFacts) -> int:
    """How many tokens memory is planned for: as the settings say, or a usual number."""
    return settings.engine.context or min(DEFAULT_CONTEXT, facts.context)


def workload(settings: Settings, facts: ModelFacts, prompt: int, output: int, concurrency: int) -> Workload:
    engine = settings.engine
    return Workload(
        prompt=prompt,
        output=output,
        concurrency=concurrency,
        context=context_of(settings, facts),
        chunk=engine.planned_chunk,
        reserve=engine.reserve_mb * MIB,
        dtype=engine.dtype,
        cpu_products=engine.cpu_products,
        pack=engine.pack,
        kv_bits=engine.kv_bits,
    )


def _request(settings: Settings, facts: ModelFacts) -> PlanRequest:
    """Asks the planner for exactly what will be started."""
    engine, layers = settings.engine, len(facts.layers)
    if engine.served_parallel == "pipeline" or engine.ranks == 1:
        if _strategy_decides(settings):
            return asked_request(settings.sharding, engine.ranks, "pipeline", "uniform")
        return PlanRequest("custom", layers=choose_split(engine.split, layers, engine.ranks))
    if tensor_rule(facts.model_type) is None:
        raise PlanError(f"{facts.model_type} is divided evenly by mlx-lm itself")
    if engine.served_parallel == "tensor":
        return replace(asked_request(settings.sharding, engine.ranks, "tensor", "uniform"), weights=engine.weights)
    stages, members = shape("hybrid", engine.ranks, engine.split, engine.weights)
    weights = engine.weights or (1,) * members
    if _strategy_decides(settings):
        return replace(asked_request(settings.sharding, engine.ranks, "hybrid", "uniform"), weights=weights)
    return PlanRequest("custom", layers=choose_split(engine.split, layers, stages), parallel="hybrid", weights=weights)
