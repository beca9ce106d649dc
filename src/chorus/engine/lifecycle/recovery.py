"""After a lost rank: the group forms again around those that are left, and every stream goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from chorus.config.engine import EngineSpec
from chorus.engine.leader import Leader
from chorus.engine.lifecycle.group import Group
from chorus.engine.lifecycle.kept import open_index
from chorus.engine.ranks.followers import CannotForm, RankLost
from chorus.platform.process.losses import Loss, gravest
from chorus.rank.runner import Runner

log = logging.getLogger("chorus.engine")

RENEWALS = 3
"""How often in a row the group may fail to form again before everything is started anew."""


@dataclass(frozen=True)
class Recovered:
    group: Group
    loss: Loss
    tokens: list[int]
    """Of each stream that goes on: how many are to be read again."""


def recover(
    spec: EngineSpec,
    group: Group,
    leader: Leader,
    lost: RankLost,
    waits_for: Callable[[str], None],
    has_loaded: Callable[[float], None],
) -> Recovered:
    """Wait until the lost rank is back, and go on with it; raises RankLost where that does not come to pass."""
    renewed = _renewed(group, lost, waits_for, has_loaded)
    loss = _told(lost, renewed.losses_since(group))
    leader.scheduler.shrink_after(loss)
    runner = Runner(renewed.shard.stage, renewed.disk)
    prefixes = open_index(spec, renewed, runner, leader.scheduler.limits.room, leader.file_list)
    tokens = leader.renew(runner, renewed.followers, prefixes, loss)
    log.info("%d streams go on, %d tokens are read again", len(tokens), sum(tokens))
    return Recovered(renewed, loss, tokens)


def _renewed(
    group: Group, lost: RankLost, waits_for: Callable[[str], None], has_loaded: Callable[[float], None]
) -> Group:
    assert group.formation, "a rank that is alone has nobody to lose"
    for _ in range(RENEWALS):
        waits_for(str(lost))
        try:
            return group.formation.renew(group, has_loaded)
        except CannotForm as error:
            lost = RankLost(str(error), lost.loss.cause)
    raise lost


def _told(lost: RankLost, losses: list[Loss]) -> Loss:
    """What the leader saw, or better: what whoever started a rank again saw of the one before."""
    return Loss(gravest([lost.loss, *losses]).cause, "; ".join([loss.told for loss in losses] or [lost.loss.told]))
