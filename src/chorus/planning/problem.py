"""What a plan is made for: model, machines, links and work, and what the user laid down. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from chorus.config.strategies import STRATEGIES, Strategy
from chorus.models.architectures import TensorRule, tensor_rule
from chorus.planning.costs import Links, Machine, StageTable, Workload, stage_tables
from chorus.planning.facts import ModelFacts
from chorus.planning.plan import PlanError, numbers
from chorus.transport import catalog

LEAST = 2
"""Stages of a hybrid, and members of each: with fewer it is a pipeline, or tensor parallelism."""

WantedParallel = Literal["auto", "pipeline", "tensor", "single", "hybrid"]


@dataclass(frozen=True)
class PlanRequest:
    """What the user laid down; all else is the planner's to choose."""

    strategy: Strategy = "auto"
    proportions: tuple[float, ...] | None = None
    layers: tuple[int, ...] | None = None
    leader: str | None = None
    """The node that must lead in an `auto` plan; the other strategies are led by the first node."""
    parallel: WantedParallel = "auto"
    """auto: whatever is quickest (the strategy auto), or a pipeline (the others). single: one node, the best."""
    weights: tuple[int, ...] | None = None
    """Tensor parallelism: the share of each node, in rank order; hybrid: of each member of a stage."""
    transport: str = catalog.AUTO
    """With one that can run them, `auto` may also choose stages of several ranks."""


@dataclass(frozen=True)
class Problem:
    """Everything that a plan depends on. Whoever asks "what if" replaces a part of it."""

    facts: ModelFacts
    nodes: Sequence[Machine]
    """In rank order."""
    links: Links
    work: Workload
    request: PlanRequest = PlanRequest()

    @cached_property
    def tables(self) -> list[StageTable]:
        """What each node's every run of layers costs, in the order of the nodes."""
        return stage_tables(self.facts, self.nodes, self.work)

    @property
    def layers(self) -> int:
        return len(self.facts.layers)

    @property
    def rule(self) -> TensorRule | None:
        """How the model is divided inside its layers; None where nobody said."""
        return tensor_rule(self.facts.model_type)


def check(problem: Problem) -> None:
    """Raise PlanError where what was laid down makes no sense for this model and these nodes."""
    facts, nodes, request = problem.facts, problem.nodes, problem.request
    if not nodes:
        raise PlanError("there are no nodes to plan for: name some")
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        raise PlanError(f"two nodes have one name among {', '.join(names)}: give each its own")
    if request.strategy not in STRATEGIES:
        raise PlanError(f"strategy {request.strategy} is unknown: use one of {', '.join(STRATEGIES)}")
    if request.leader is not None and request.leader not in names:
        raise PlanError(f"the leader {request.leader} is not among the nodes {', '.join(names)}")
    if request.parallel == "hybrid":
        _check_hybrid(problem)
    elif request.parallel == "tensor":
        _check_tensor(problem)
    elif request.strategy == "custom" and request.parallel != "single":
        _check_custom(problem, len(nodes))
    if problem.work.context > facts.longest(problem.work.context):
        raise PlanError(f"the model's context is {facts.context} tokens, not {problem.work.context}: ask for less")


def _check_custom(problem: Problem, stages: int) -> None:
    request = problem.request
    given = request.layers or request.proportions
    if not given:
        raise PlanError("the strategy custom needs proportions or layers: give one of them")
    if len(given) != stages:
        raise PlanError(
            f"{numbers(given)} has {len(given)} entries for {stages} nodes: give one per node, rank 0 first"
        )
    if any(part <= 0 for part in given):
        raise PlanError(f"{numbers(given)}: every node needs more than 0")
    if request.layers and sum(request.layers) != problem.layers:
        raise PlanError(
            f"layers {numbers(request.layers)} add up to {sum(request.layers)} where the model has {problem.layers}"
        )


def _check_rule(problem: Problem) -> None:
    if problem.rule is None:
        raise PlanError(f"{problem.facts.model_type} has no rule to divide it inside its layers: use parallel pipeline")


def _check_tensor(problem: Problem) -> None:
    _check_rule(problem)
    request, count, groups = problem.request, len(problem.nodes), problem.facts.groups
    if count < 2:
        raise PlanError("tensor parallelism needs 2 nodes at least: name more, or use parallel single")
    given = request.weights or (request.proportions if request.strategy == "custom" else None)
    if request.strategy == "custom" and not given:
        raise PlanError("the strategy custom with parallel tensor needs weights or proportions: give one of them")
    if given and (len(given) != count or any(part <= 0 for part in given)):
        raise PlanError(f"{numbers(given)}: expected {count} weights above 0, one per node, rank 0 first")
    if (given or request.strategy != "auto") and count > groups:
        raise PlanError(
            f"{count} nodes cannot share {groups} key/value groups: leave some out, or use the strategy auto"
        )


def _check_hybrid(problem: Problem) -> None:
    _check_rule(problem)
    request, count, groups = problem.request, len(problem.nodes), problem.facts.groups
    if request.weights and (min(request.weights) <= 0 or not LEAST <= len(request.weights) <= groups):
        raise PlanError(f"weights {numbers(request.weights)}: expected {LEAST} to {groups} numbers above 0")
    weights = hybrid_weights(problem, request)
    if not weights:
        raise PlanError(
            f"parallel hybrid cannot divide {count} node{'s' * (count > 1)}: it needs {LEAST} stages of {LEAST} nodes "
            "at least, all stages alike; use another number of nodes, or parallel pipeline or tensor"
        )
    if request.strategy == "custom":
        _check_custom(problem, count // len(weights[0]))


def hybrid_weights(problem: Problem, request: PlanRequest) -> list[tuple[int, ...]]:
    """The shares within a stage that the nodes allow: as given, or even ones for each number of members. But for the
    strategy auto, all nodes must be used.
    """
    count, groups = len(problem.nodes), problem.facts.groups
    given = len(request.layers or request.proportions or ()) if request.strategy == "custom" else 0
    weights = [request.weights] if request.weights else [(1,) * n for n in range(LEAST, min(count, groups) + 1)]
    return [
        some
        for some in weights
        if count // len(some) >= LEAST
        and (request.strategy == "auto" or not count % len(some))
        and given in (0, count / len(some))
    ]
