"""What a chain of stages takes for a request: the stages themselves, and the links between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chorus.planning.costs import Link, Links, StageTable, Workload, activation_item
from chorus.planning.facts import ModelFacts

HANDOVER_SECONDS = 0.002
"""What one more rank costs each step at both ends of its link: reading the step, framing, waking up. Measured with a
model of no size: a few milliseconds of CPU time for each rank beyond the first."""


@dataclass(frozen=True)
class Hop:
    """From one stage to the next."""

    prefill: float
    decode: float


def hop(facts: ModelFacts, link: Link, sender: StageTable, work: Workload) -> Hop:
    width = facts.hidden * activation_item(facts, sender.policies[0])
    return Hop(
        HANDOVER_SECONDS + link.latency + work.chunk_tokens * width / link.bandwidth,
        HANDOVER_SECONDS + link.latency + work.concurrency * width / link.bandwidth,
    )


@dataclass(frozen=True)
class Prediction:
    """Of the request in the workload."""

    first_token_seconds: float
    token_seconds: float
    link_seconds: float
    """The part of each token's time that is spent between ranks."""
    request_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of one sequence; all concurrent ones together make so many times more."""
        return 1 / self.token_seconds


def predict_pipeline(
    facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, bounds: Sequence[int]
) -> Prediction:
    """`tables` in stage order, stage s holding layers bounds[s] to bounds[s + 1] - 1."""
    runs = list(pairwise(bounds))
    prefill = [float(table.prefill[run]) for table, run in zip(tables, runs, strict=True)]
    decode = [float(table.decode[run]) for table, run in zip(tables, runs, strict=True)]
    hops, back = hops_of(facts, tables, links, work)
    slowest = max([*prefill, *(hop.prefill for hop in hops)])
    first_token = sum(prefill) + sum(hop.prefill for hop in hops) + back + (work.chunks - 1) * slowest
    between = sum(hop.decode for hop in hops) + back
    token = sum(decode) + between
    return Prediction(first_token, token, between, first_token + work.output * token)


def hops_of(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload) -> tuple[list[Hop], float]:
    """Between neighbours, and the way back of a sampled token to the first stage."""
    pairs = list(pairwise(tables))
    hops = [hop(facts, links.between(one.node.name, other.node.name), one, work) for one, other in pairs]
    back = links.between(tables[-1].node.name, tables[0].node.name).latency if pairs else 0.0
    return hops, back
