"""A plan: who holds what, with the predicted memory and speed of each rank. A plain value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from chorus.errors import ChorusError
from chorus.planning.costs import Prediction, Workload
from chorus.platform.accelerator.dtype import Form, policy_name

Parallel = Literal["single", "pipeline", "tensor", "hybrid"]


class PlanError(ChorusError):
    """There is no plan: one line that says why and what would change it."""


class DoesNotFit(PlanError):
    """The model is too large for these nodes."""

    def __init__(self, missing: int, hints: tuple[str, ...] = (), where: str = "") -> None:
        self.missing = missing
        self.hints = hints
        *first, last = (f"needs {size(missing)} more memory{where}", *hints)
        super().__init__(f"{'; '.join(first)}; or {last}" if len(hints) > 1 else "; ".join((*first, last)))


@dataclass(frozen=True)
class RankPlan:
    """What one rank holds, and how long it takes over its part."""

    rank: int
    node: str
    first_layer: int
    last_layer: int
    """The last layer that it holds, not the one after."""
    share: int
    """Key/value groups held, where layers are divided inside; otherwise all of them."""
    dtype: str
    form: Form
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    reserve_bytes: int
    memory_bytes: int
    """What the rank may take."""
    chunk_seconds: float
    step_seconds: float
    """Seconds of its own part of a decode step; `chunk_seconds`, of a prefill chunk."""
    computes_in: str = ""
    """The number type of its activations and caches, also where weights stay as stored; empty in an older plan."""

    @property
    def dequantize(self) -> bool:
        return self.form == "unpacked"

    @property
    def policy_name(self) -> str:
        """What the rank does with its weights, as it is told."""
        return policy_name(self.dtype, self.form)

    @property
    def numbers(self) -> str:
        """What it computes in, and what becomes of its weights, for people."""
        return f"{self.computes_in}, as stored" if self.dtype == "stored" and self.computes_in else self.policy_name

    @property
    def layers(self) -> int:
        return self.last_layer - self.first_layer + 1

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.activation_bytes + self.reserve_bytes

    def booked_bytes(self, cache: int | None) -> int:
        """What is booked for it before it loads, where its cache was given a budget of its own or not."""
        return self.needed_bytes if cache is None else self.needed_bytes - self.cache_bytes + cache

    @property
    def headroom_bytes(self) -> int:
        return self.memory_bytes - self.needed_bytes


@dataclass(frozen=True)
class Excluded:
    """A node that a plan leaves out, and why."""

    node: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Who holds what, and what one gets for it."""

    model: str
    model_layers: int
    strategy: str
    parallel: Parallel
    ranks: tuple[RankPlan, ...]
    """The ranks in their order: rank 0 leads and holds the last layers."""
    workload: Workload
    prediction: Prediction
    limit: str
    """What makes it no faster."""
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def split(self) -> tuple[int, ...]:
        """Layers of each stage, as `--split` takes them; of a tensor plan, the weights."""
        return self.weights if self.parallel == "tensor" else tuple(r.layers for r in self.ranks[:: self.members])

    @property
    def weights(self) -> tuple[int, ...]:
        """Shares of the ranks of a stage, as `--weights` takes them; empty where layers are not divided inside."""
        divided = self.parallel in ("tensor", "hybrid")
        return tuple(rank.share for rank in self.ranks[: self.members]) if divided else ()

    @property
    def members(self) -> int:
        """Ranks that share a stage's layers."""
        return sum(rank.first_layer == self.ranks[0].first_layer for rank in self.ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(rank.node for rank in self.ranks)

    def __str__(self) -> str:
        parts = ", ".join(f"rank {rank.rank} {rank.node} {self.held_by(rank)}" for rank in self.ranks)
        return f"{self.parallel}: {parts}"

    def held_by(self, rank: RankPlan) -> str:
        layers, weight = f"layers {rank.first_layer}-{rank.last_layer}", f"weight {rank.share}"
        return weight if self.parallel == "tensor" else f"{layers} {weight}" if self.weights else layers

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"split": list(self.split), "weights": list(self.weights)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> Plan:
        """The plan that `to_json` wrote; PlanError where it is something else."""
        try:
            tree = dict(json.loads(data) if isinstance(data, str) else data)
            for derived in ("split", "weights"):
                tree.pop(derived, None)
            return cls(
                **{
                    **tree,
                    "ranks": tuple(RankPlan(**rank) for rank in tree["ranks"]),
                    "workload": Workload(**tree["workload"]),
                    "prediction": Prediction(**tree["prediction"]),
                    "excluded": tuple(Excluded(**node) for node in tree["excluded"]),
                    "notes": tuple(tree["notes"]),
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PlanError(f"this is no plan as `chorus plan --json` prints it: {error}") from error


def size(count: float) -> str:
    """A number of bytes for people, in the unit that machines are sold in."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1e3:.0f} kB"


def numbers(some: Sequence[float]) -> str:
    """A list as options take it."""
    return ",".join(f"{number:g}" for number in some)
