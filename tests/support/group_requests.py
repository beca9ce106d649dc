"""The same requests for a group of ranks and for the whole model: chunked prompts, a batch, one that leaves early."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

from chorus.config.engine import EngineSpec
from chorus.engine.leader import Leader
from chorus.engine.lifecycle.group import form_group
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Progress, Request, Sampling
from chorus.rank.runner import Runner


def requests() -> list[Request]:
    random = Random(5)
    return [
        Request(
            f"1:{i}",
            tuple(random.randrange(3, 250) for _ in range(size)),
            most,
            sampling=Sampling(temperature=0),
            logprobs=0,
        )
        for i, (size, most) in enumerate(((3, 6), (40, 3), (9, 6), (21, 6)))
    ]


def generate(spec: EngineSpec) -> dict[str, Any]:
    tokens: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}

    def publish(news: list[Progress]) -> None:
        for progress in news:
            assert not progress.error
            tokens.setdefault(progress.id, []).extend(progress.tokens)
            logprobs.setdefault(progress.id, []).extend(score.logprob for score in progress.logprobs)

    with contextlib.ExitStack() as cleanup:
        group = form_group(spec, lambda fraction: None, cleanup)
        limits = SchedulerLimits(
            context=256,
            prefill_chunk=16,
            lookahead=group.lookahead,
            max_batch=8 if group.batches else 1,
            lanes=spec.lanes or 1,
        )
        leader = Leader(Runner(group.shard.stage), Scheduler(limits), publish, group.followers)
        first, *others = requests()
        for together in ([first], others):
            for request in together:
                assert leader.scheduler.submit(request) is None
            while not leader.idle:
                leader.turn()
        followers = group.followers.followers if group.followers else ()
        held = [
            (group.shard.stage.first, group.shard.stage.last, group.shard.weight_bytes),
            *((f.loaded.first_layer, f.loaded.last_layer, f.loaded.weight_bytes) for f in followers),
        ]
    return {"tokens": tokens, "logprobs": logprobs, "held": held, "lookahead": group.lookahead}
