"""What the user laid down for a plan, and whether it makes sense. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from chorus.config.tree import Strategy
from chorus.planning.costs import Node, Workload
from chorus.planning.facts import ModelFacts
from chorus.planning.hybrid import LEAST
from chorus.planning.plan import PlanError, numbers
from chorus.planning.tensor import TENSOR_ARCHITECTURES
from chorus.transport import catalog

Wanted = Literal["auto", "pipeline", "tensor", "single", "hybrid"]


@dataclass(frozen=True)
class Wish:
    """What the user laid down."""

    strategy: Strategy = "auto"
    proportions: tuple[float, ...] | None = None
    layers: tuple[int, ...] | None = None
    leader: str | None = None
    """The node that must lead in an `auto` plan; the other strategies are led by the first node."""
    parallel: Wanted = "auto"
    """auto: whatever is quickest (the strategy auto), or a pipeline (the others). single: one node, the best."""
    weights: tuple[int, ...] | None = None
    """Tensor parallelism: the share of each node, in rank order; hybrid: of each member of a stage."""
    transport: str = catalog.AUTO
    """With one that can run them, `auto` may also choose stages of several ranks."""


def check_wish(facts: ModelFacts, nodes: Sequence[Node], work: Workload, wish: Wish) -> None:
    if not nodes:
        raise PlanError("there are no nodes to plan for: name some")
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        raise PlanError(f"two nodes have one name among {', '.join(names)}: give each its own")
    if wish.strategy not in get_args(Strategy):
        raise PlanError(f"strategy {wish.strategy} is unknown: use one of {', '.join(get_args(Strategy))}")
    if wish.leader is not None and wish.leader not in names:
        raise PlanError(f"the leader {wish.leader} is not among the nodes {', '.join(names)}")
    if wish.parallel == "hybrid":
        _check_hybrid(facts, len(nodes), wish)
    elif wish.parallel == "tensor":
        _check_tensor(facts, len(nodes), wish)
    elif wish.strategy == "custom" and wish.parallel != "single":
        _check_custom(facts, len(nodes), wish)
    if work.context > facts.context:
        raise PlanError(f"the model's context is {facts.context} tokens, not {work.context}: ask for less")


def _check_custom(facts: ModelFacts, count: int, wish: Wish) -> None:
    given = wish.layers or wish.proportions
    if not given:
        raise PlanError("the strategy custom needs proportions or layers: give one of them")
    if len(given) != count:
        raise PlanError(f"{numbers(given)} has {len(given)} entries for {count} nodes: give one per node, rank 0 first")
    if any(part <= 0 for part in given):
        raise PlanError(f"{numbers(given)}: every node needs more than 0")
    if wish.layers and sum(wish.layers) != len(facts.layers):
        raise PlanError(
            f"layers {numbers(wish.layers)} add up to {sum(wish.layers)} where the model has {len(facts.layers)}"
        )


def _check_tensor(facts: ModelFacts, count: int, wish: Wish) -> None:
    if facts.model_type not in TENSOR_ARCHITECTURES:
        raise PlanError(f"{facts.model_type} has no rule to divide it inside its layers: use parallel pipeline")
    if count < 2:
        raise PlanError("tensor parallelism needs 2 nodes at least: name more, or use parallel single")
    given = wish.weights or (wish.proportions if wish.strategy == "custom" else None)
    if wish.strategy == "custom" and not given:
        raise PlanError("the strategy custom with parallel tensor needs weights or proportions: give one of them")
    if given and (len(given) != count or any(part <= 0 for part in given)):
        raise PlanError(f"{numbers(given)}: expected {count} weights above 0, one per node, rank 0 first")
    if (given or wish.strategy != "auto") and count > facts.groups:
        raise PlanError(
            f"{count} nodes cannot share {facts.groups} key/value groups: leave some out, or use the strategy auto"
        )


def _check_hybrid(facts: ModelFacts, count: int, wish: Wish) -> None:
    if facts.model_type not in TENSOR_ARCHITECTURES:
        raise PlanError(f"{facts.model_type} has no rule to divide it inside its layers: use parallel pipeline")
    if wish.weights and (min(wish.weights) <= 0 or not LEAST <= len(wish.weights) <= facts.groups):
        raise PlanError(f"weights {numbers(wish.weights)}: expected {LEAST} to {facts.groups} numbers above 0")
    if not hybrid_weights(facts, count, wish):
        raise PlanError(
            f"parallel hybrid cannot divide {count} node{'s' * (count > 1)}: it needs {LEAST} stages of {LEAST} nodes "
            "at least, all stages alike; use another number of nodes, or parallel pipeline or tensor"
        )
    if wish.strategy == "custom":
        _check_custom(facts, count // len(hybrid_weights(facts, count, wish)[0]), wish)


def hybrid_weights(facts: ModelFacts, count: int, wish: Wish) -> list[tuple[int, ...]]:
    """The shares within a stage that so many nodes allow: as given, or even ones for each number of members. But for
    the strategy auto, all nodes must be used.
    """
    given = len(wish.layers or wish.proportions or ()) if wish.strategy == "custom" else 0
    weights = [wish.weights] if wish.weights else [(1,) * n for n in range(LEAST, min(count, facts.groups) + 1)]
    return [
        some
        for some in weights
        if count // len(some) >= LEAST
        and (wish.strategy == "auto" or not count % len(some))
        and given in (0, count / len(some))
    ]
