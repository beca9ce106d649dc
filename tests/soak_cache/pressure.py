"""`python -m tests.soak_cache.pressure`: streams that want four times the memory that there is for their caches.

Every answer must be whole and right, and no rank may hold more than its budget and a little: a stream that had to make
room is not to be told from one that never had.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.soak_cache import prepared

prepared.prepare()

from chorus.config.engine import EngineSpec  # noqa: E402
from chorus.config.sections import CacheConfig  # noqa: E402
from chorus.engine.leader import Leader  # noqa: E402
from chorus.engine.room import rectangle  # noqa: E402
from chorus.messages.engine import Request, Sampling  # noqa: E402
from tests.soak_cache.cases import Case  # noqa: E402
from tests.soak_cache.conversations import FIRST_WORD, Ask, Conversation  # noqa: E402
from tests.soak_cache.holding import Table, leading  # noqa: E402
from tests.soak_cache.meter import Meter, Most  # noqa: E402
from tests.soak_cache.running import memory_for, rank_addresses, wrong_answers  # noqa: E402
from tests.support.architectures import ARCHITECTURES  # noqa: E402
from tests.support.ranks import Ranks  # noqa: E402
from tests.support.sockets import short  # noqa: E402
from tests.support.state import keep_apart  # noqa: E402
from tests.support.teacher import Teacher  # noqa: E402
from tests.support.tiny_model import override, vocabulary_size, write_random_model  # noqa: E402

CASES = ("qwen2-pipeline-2", "qwen3_5-pipeline-2")
WANTED = 4.5
"""Times the budget: as long as less is wanted, one more conversation begins with every turn."""
LEAST = 4.0
"""What the average must be."""
OVER = 1.05
"""What a rank may hold of its budget."""
CONTEXT = 1024
ROWS = 8
"""For how many sequences of that length there is memory."""
PROMPT, ANSWER = 300, 500
"""The longest message and the longest answer."""
SYSTEMS = 4
WIDE = {"num_key_value_heads": 4, "head_dim": 64}
"""Caches that take far more than what a step computes beside them."""


@dataclass
class Load:
    """Talks about the same few things, with long answers."""

    vocabulary: int
    systems: tuple[tuple[int, ...], ...]
    seconds: float
    ends: float = math.inf
    """Once it has begun."""

    @staticmethod
    def drawn(random: Random, vocabulary: int, seconds: float) -> Load:
        systems = tuple(words(random, vocabulary, 64 * number) for number in range(SYSTEMS))
        return Load(vocabulary, systems, seconds)

    def begin(self) -> None:
        """Its time counts from now on."""
        self.ends = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    def conversations(self, seed: int) -> Iterator[Conversation]:
        for number in itertools.takewhile(lambda _: not self.over, itertools.count()):
            yield self.talk(Random(f"{seed}/{number}"))

    def talk(self, random: Random) -> Conversation:
        history = random.choice(self.systems)
        for turn in itertools.takewhile(lambda _: not self.over, range(3)):
            prompt = (*history, *words(random, self.vocabulary, random.randint(1, PROMPT)))
            room = CONTEXT - len(prompt)
            if room < 1:
                return
            sampling = Sampling(temperature=1.0, seed=random.randrange(1 << 40)) if turn % 2 else Sampling()
            request = Request("", prompt, random.randint(1, min(room, ANSWER)), sampling=sampling, logprobs=0)
            gives_up = random.randint(1, 100) if random.random() < 0.1 else None
            (answer,) = yield [Ask(request, cancel_after_tokens=gives_up)]
            history = answer.read


def words(random: Random, vocabulary: int, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(FIRST_WORD, vocabulary) for _ in range(count))


class Crowd(Table):
    """As many conversations as it takes to want so much at every moment."""

    def __init__(self, load: Load) -> None:
        super().__init__(at_once=1)
        self.wanted: list[float] = []
        """Of the tightest rank's budget, turn by turn, from when there are enough until no more come."""
        self._load = load

    def _act(self, leader: Leader) -> None:
        room = leader.scheduler.limits.room
        longest = [rectangle([asked.request.longest]) for asked in self._open.values()]
        wanted = room.size(sum(use.tokens for use in longest), len(longest))
        enough = wanted >= WANTED
        if enough and not self.wanted:
            # Not before: how long it takes until so many talk depends on the machine.
            self._load.begin()
        if (enough or self.wanted) and not self._load.over:
            self.wanted.append(wanted)
        self._at_once += not enough
        super()._act(leader)


def press(case: Case, seed: int, seconds: float, folder: Path) -> list[str]:
    """What went wrong."""
    config = override(ARCHITECTURES[case.architecture], WIDE | {"max_position_embeddings": CONTEXT})
    write_random_model(folder / "model", config)
    addresses = rank_addresses(folder, case.ranks)
    files = [folder / f"rank{rank}.bytes" for rank in range(case.ranks)]
    spec = EngineSpec(
        address=f"unix:{short(folder)}/engine.sock",
        model_path=folder / "model",
        ranks=addresses if case.ranks > 1 else (),
        threads=1,
        context=CONTEXT,
        prefill_chunk=64,
        max_batch=64,
        max_queue=1024,
        lanes=1,
        cache=CacheConfig(memory=memory_for(ROWS * CONTEXT, 2 * ROWS, case, config)),
    )
    load = Load.drawn(Random(seed), vocabulary_size(config), seconds)
    crowd = Crowd(load)
    with Ranks(folder) as ranks:
        for rank in range(1, case.ranks):
            ranks.follower(rank, addresses[rank], "--metered", module="tests.soak_cache.follower")
        metered = Meter(files[0]).install()
        with leading(spec, crowd.publish) as leader:
            room = leader.scheduler.limits.room
            crowd.hold(leader, load.conversations(seed))
        metered.stop()
    found, most = crowd.findings, [Meter.read(file) for file in files]
    wanted = sum(crowd.wanted) / max(1, len(crowd.wanted))
    print(
        f"{case.name}: {found.requests} answers, {found.tokens} tokens in {found.seconds:.0f} s; "
        f"{wanted:.1f} budgets wanted on average, {found.preempted} times a stream made room, "
        f"{found.operations.get('evict', 0)} segments evicted, {found.cached_tokens} of {found.prompt_tokens} prompt "
        f"tokens cached",
        flush=True,
    )
    faults = list(found.faults)
    for rank, (allowed, held) in enumerate(zip(room.ranks, most, strict=True)):
        print(f"  rank {rank}: {told(held, allowed.budget)}", flush=True)
        if max(held.held, held.active) > OVER * allowed.budget:
            faults.append(f"rank {rank} held {max(held.held, held.active)} bytes of {allowed.budget}")
    faults += wrong_answers(Teacher(config), crowd)
    if not found.preempted or wanted < LEAST:
        faults.append("too little was wanted to prove anything")
    return faults


def told(most: Most, budget: int) -> str:
    return (
        f"budget {budget / 1e6:.1f} MB; at most {most.held / budget:.2f} of it in caches, "
        f"{most.active / budget:.2f} by MLX's own count, {most.peak / budget:.2f} inside steps"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_cache.pressure", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long each case is loaded (180)")
    parser.add_argument("--seed", type=int, default=1, help="what the load follows from (1)")
    parser.add_argument("--case", action="append", help=f"such as qwen2-pipeline-2 ({', '.join(CASES)})")
    given = parser.parse_args()
    keep_apart()
    failed = False
    for name in given.case or CASES:
        with tempfile.TemporaryDirectory(prefix="chorus-soak-") as folder:
            faults = press(Case.named(name), given.seed, given.seconds, Path(folder))
        for fault in faults[:10]:
            print(f"  {fault}", flush=True)
        failed = failed or bool(faults)
    print("FAILED" if failed else "every answer is right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
