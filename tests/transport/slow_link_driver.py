"""Leads two pairs of ranks in turn, one that may pack its frames and one that may not, and times their prefills.

Run as a program on a host of its own: MODEL, then the addresses of leader and follower of the pair that packs, then of
the other.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from chorus import platform

PROMPT_TOKENS, CHUNK, ROUNDS = 1024, 256, 5


def main(model: Path, pairs: dict[str, tuple[str, str]]) -> dict[str, Any]:
    from chorus.config.engine import EngineSpec
    from chorus.engine.leader import Leader
    from chorus.engine.lifecycle.group import form_group
    from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
    from chorus.messages.engine import Progress, Request
    from chorus.rank.runner import Runner

    tokens: dict[str, list[list[int]]] = {wish: [] for wish in pairs}
    seconds: dict[str, list[float]] = {wish: [] for wish in pairs}
    with contextlib.ExitStack() as cleanup:
        leaders = {}
        for wish, ranks in pairs.items():
            spec = EngineSpec(
                address="unix:unused",
                model_path=model,
                ranks=ranks,
                compression=wish,
                threads=1,
                insecure=True,
                step_timeout_seconds=60,
            )
            group = form_group(spec, lambda fraction: None, cleanup)
            limits = SchedulerLimits(context=2048, prefill_chunk=CHUNK, lookahead=group.lookahead)

            def publish(news: list[Progress], wish: str = wish) -> None:
                for progress in news:
                    assert not progress.error, progress.error
                    tokens[wish][-1].extend(progress.tokens)

            leaders[wish] = Leader(Runner(group.shard.stage), Scheduler(limits), publish, group.followers), group
        random = Random(7)
        for turn in range(ROUNDS):
            prompt = tuple(random.randrange(3, 250) for _ in range(PROMPT_TOKENS))
            for wish in sorted(leaders, reverse=bool(turn % 2)):
                leader, _ = leaders[wish]
                tokens[wish].append([])
                started = time.perf_counter()
                assert leader.scheduler.submit(Request(f"1:{turn}", prompt, 1)) is None
                while not leader.idle:
                    leader.turn()
                seconds[wish].append(time.perf_counter() - started)
        traffic = {}
        for wish, (_, group) in leaders.items():
            assert group.followers
            seen = group.followers.followers[0].traffic
            traffic[wish] = [seen.tensor_bytes, seen.sent_bytes]
    return {"tokens": tokens, "seconds": seconds, "traffic": traffic}


if __name__ == "__main__":
    platform.prepare(1)
    model, *addresses = sys.argv[1:]
    print(json.dumps(main(Path(model), {"auto": tuple(addresses[:2]), "off": tuple(addresses[2:])})))
