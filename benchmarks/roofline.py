"""What a forward must move and compute, and the least time that this takes a machine of known rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chorus.planning.facts import ITEM_BYTES, LayerFacts, ModelFacts
from chorus.platform.accelerator.dtype import DtypePolicy

ACTIVATIONS = 16
"""Arrays of the hidden width that a layer writes and reads again: its inputs, projections and MLP."""


@dataclass(frozen=True)
class Work:
    """Of one forward, or of several: bytes that must be read or written, and operations of products."""

    weights: float = 0.0
    cache: float = 0.0
    activations: float = 0.0
    operations: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weights + self.cache + self.activations

    def __add__(self, other: Work) -> Work:
        return Work(
            self.weights + other.weights,
            self.cache + other.cache,
            self.activations + other.activations,
            self.operations + other.operations,
        )


@dataclass(frozen=True)
class Rates:
    """What a machine was measured to do."""

    bandwidth: float
    """Bytes per second."""
    operations: float
    """Of products, per second."""

    def least_seconds(self, work: Work) -> float:
        """Whichever takes longer, if the other goes on meanwhile."""
        return max(work.bytes / self.bandwidth, work.operations / self.operations)


@dataclass(frozen=True)
class Loaded:
    """A model as a rank holds it."""

    facts: ModelFacts
    policy: DtypePolicy
    dtype: str
    """The number type that it computes in."""

    def forward(self, rows: int, tokens: int, before: int, answers: int) -> Work:
        """Of so many new tokens in each of some rows, behind so many in the cache; how many logits anybody wants."""
        fed, item = rows * tokens, ITEM_BYTES[self.dtype]
        layers = sum((self._layer(layer, rows, tokens, before) for layer in self.facts.layers), Work())
        head = self.facts.tokens + self.facts.head if self.facts.tied else self.facts.head
        ends = Work(
            weights=(head.read_under(self.policy) if answers else 0.0) + fed * self.facts.hidden * item,
            activations=2.0 * answers * self.facts.vocabulary * item,
            operations=2.0 * answers * head.elements,
        )
        return layers + ends

    def _layer(self, layer: LayerFacts, rows: int, tokens: int, before: int) -> Work:
        facts, item, fed = self.facts, ITEM_BYTES[self.dtype], rows * tokens
        idle = layer.experts.read_under(self.policy) * (1 - layer.read_share(fed))
        kept = layer.cache
        # Each token looks at all before it, and at itself.
        seen = sum(kept.numbers(before + place) - kept.state for place in range(1, tokens + 1))
        return Work(
            weights=layer.weights.read_under(self.policy) - idle,
            # All that is there is read, and what is new is written.
            cache=float(rows * (kept.numbers(before) + kept.per_token * tokens + kept.state) * item),
            activations=2.0 * ACTIVATIONS * fed * facts.hidden * item,
            operations=2.0 * fed * layer.active_elements + 2.0 * rows * seen * facts.heads / max(1, facts.groups),
        )

    def decode(self, rows: int, context: int) -> Work:
        """A step that draws one token for each row."""
        return self.forward(rows, 1, context, rows)

    def prefill(self, tokens: int, chunk: int) -> list[Work]:
        """Of one prompt, chunk by chunk; the last one brings the first token."""
        starts = range(0, tokens, chunk)
        return [self.forward(1, min(chunk, tokens - start), start, int(start + chunk >= tokens)) for start in starts]


def least_seconds(rates: Rates, forwards: Iterable[Work]) -> float:
    """One behind the other."""
    return sum(map(rates.least_seconds, forwards))
