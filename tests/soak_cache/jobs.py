"""Sittings one after the other, in several processes beside each other."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.soak_cache import prepared

prepared.prepare()

from tests.soak_cache.cases import Sitting  # noqa: E402
from tests.soak_cache.holding import Findings  # noqa: E402
from tests.soak_cache.running import Place  # noqa: E402

Done = tuple[Sitting, Findings]


def run(sittings: list[Sitting], jobs: int, seconds: float) -> list[Done]:
    """Those that could be begun within so many seconds."""
    jobs, deadline = min(jobs, len(sittings)), time.monotonic() + seconds
    shares = [sittings[job::jobs] for job in range(jobs)]
    work: Callable[[list[Sitting]], list[Done]] = partial(_work, deadline=deadline)
    if jobs == 1:
        return work(sittings)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return [done for share in pool.map(work, shares) for done in share]


def _work(sittings: list[Sitting], deadline: float) -> list[Done]:
    results = []
    with tempfile.TemporaryDirectory(prefix="chorus-soak-") as folder, Place(Path(folder)) as place:
        for sitting in sittings:
            started = time.monotonic()
            if started > deadline:
                break
            findings = _hold(place, sitting)
            print(line(sitting, findings, time.monotonic() - started), flush=True)
            results.append((sitting, findings))
    return results


def _hold(place: Place, sitting: Sitting) -> Findings:
    try:
        return place.hold(sitting)
    except Exception as error:
        # Ranks of a group that failed are of no use to the next: the job goes on with new ones.
        place.start_anew()
        return Findings(faults=[f"the group failed: {type(error).__name__}: {error}"])


def line(sitting: Sitting, found: Findings, seconds: float) -> str:
    counts = {**found.operations, "preempted": found.preempted}
    operations = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    verdict = f"{len(found.faults)} FAULTS" if found.faults else "right"
    return (
        f"{sitting.case.name:24} {sitting.number:2}: {sitting.conversations} conversations, {found.requests} requests, "
        f"{found.tokens} tokens, {verdict}; {found.cached_tokens} of {found.prompt_tokens} prompt tokens cached "
        f"({found.could_be_cached} could be); {operations}; {found.seconds:.1f} of {seconds:.1f} s"
    )
