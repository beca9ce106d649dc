"""What one rank says, in the test's own process: what several ranks, or a server, must say as well."""

from __future__ import annotations

import contextlib
from pathlib import Path

from chorus.config.engine import EngineSpec
from chorus.engine.leader import Leader
from chorus.engine.lifecycle.group import form_group
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Progress, Request
from chorus.rank.runner import Runner
from chorus.text.tokenizer import Tokenizer


def text_alone(model: Path, prompt: str, count: int) -> str:
    """The most likely continuation, of so many tokens at most."""
    tokenizer = Tokenizer.load(model)
    tokens: list[int] = []

    def publish(news: list[Progress]) -> None:
        for progress in news:
            assert not progress.error
            tokens.extend(progress.tokens)

    with contextlib.ExitStack() as cleanup:
        group = form_group(EngineSpec(address="unix:/nowhere", model_path=model), lambda fraction: None, cleanup)
        leader = Leader(Runner(group.shard.stage), Scheduler(SchedulerLimits(context=256)), publish, group.followers)
        request = Request("1:1", tuple(tokenizer.encode(prompt)), count, stop_tokens=tokenizer.eos_ids)
        assert leader.scheduler.submit(request) is None
        while not leader.idle:
            leader.turn()
    return tokenizer.decode(tokens)
