"""What the settings lay down of a division, as a request to the planner: the same on one machine and over many."""

from __future__ import annotations

import logging

from chorus.config.sections import ShardingConfig
from chorus.config.strategies import Strategy
from chorus.planning.problem import PlanRequest, WantedParallel

log = logging.getLogger("chorus.plan")


def asked_request(sharding: ShardingConfig, ranks: int, parallel: WantedParallel, otherwise: Strategy) -> PlanRequest:
    """The strategy that the settings name, for so many ranks which are all used; `otherwise` where they leave it open,
    or where what they lay down is for another number of ranks.
    """
    shares, strategy = sharding.custom_proportions, sharding.strategy
    if strategy == "custom" and shares and len(shares) == ranks:
        return PlanRequest("custom", proportions=shares, parallel=parallel)
    if strategy == "custom" and shares:
        log.warning("%d proportions are not for %d ranks: dividing anew", len(shares), ranks)
    return PlanRequest(otherwise if strategy in ("auto", "custom") else strategy, parallel=parallel)
