"""`python -m tests.soak_cache`: random conversations with engines that keep what they computed, each answer looked at.

Text with the cache must equal text without: every received token is compared with what the plain model says when it is
fed the same tokens. A failing run says how to repeat the sitting that failed: everything follows from the seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# On a CPU a C++ compiler would run for every function that upstream compiles.
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

from chorus import platform
from chorus.rank.upstream import lean

platform.prepare(1)
lean.install()

from tests.soak_cache.cases import MATRIX, Case, Sitting, in_all, of_each  # noqa: E402
from tests.soak_cache.holding import Findings  # noqa: E402
from tests.soak_cache.running import Place  # noqa: E402


def run(sittings: list[Sitting]) -> list[tuple[Sitting, Findings]]:
    """One after the other, in this process."""
    results = []
    with tempfile.TemporaryDirectory(prefix="chorus-soak-") as folder, Place(Path(folder)) as place:
        for sitting in sittings:
            started = time.monotonic()
            findings = place.hold(sitting)
            print(line(sitting, findings, time.monotonic() - started), flush=True)
            results.append((sitting, findings))
    return results


def line(sitting: Sitting, found: Findings, seconds: float) -> str:
    counts = {**found.operations, "preempted": found.preempted}
    operations = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    verdict = f"{len(found.faults)} FAULTS" if found.faults else "right"
    return (
        f"{sitting.case.name:24} {sitting.number:2}: {sitting.conversations} conversations, {found.requests} requests, "
        f"{found.tokens} tokens, {verdict}; {found.cached_tokens} of {found.prompt_tokens} prompt tokens cached "
        f"({found.could_be_cached} could be); {operations}; {found.seconds:.1f} of {seconds:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_cache", description=__doc__)
    parser.add_argument("--conversations", type=int, default=300, help="of each case (300)")
    parser.add_argument("--in-all", type=int, help="so many instead, drawn from all cases")
    parser.add_argument("--seed", type=int, default=1, help="what everything follows from (1)")
    parser.add_argument("--case", action="append", type=Case.named, help="only this, such as qwen2-pipeline-2")
    parser.add_argument("--sitting", type=int, help="only this one of each case")
    parser.add_argument("--jobs", type=int, default=2, help="sittings at a time (2)")
    given = parser.parse_args()
    cases = given.case or MATRIX
    if given.sitting is not None:
        sittings = [Sitting(case, given.seed, given.sitting, given.conversations) for case in cases]
    elif given.in_all:
        sittings = in_all(cases, given.seed, given.in_all)
    else:
        sittings = of_each(cases, given.seed, given.conversations)
    jobs = min(given.jobs, len(sittings))
    if jobs > 1:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            results = [done for part in pool.map(run, [sittings[job::jobs] for job in range(jobs)]) for done in part]
    else:
        results = run(sittings)
    faulty = [(sitting, found) for sitting, found in results if found.faults]
    for sitting, found in faulty:
        print(f"\n{sitting.case.name}, seed {sitting.seed}: {len(found.faults)} faults; again: {sitting.command}")
        print(*(f"  {fault}" for fault in found.faults[:10]), sep="\n")
    conversations, requests = sum(s.conversations for s, _ in results), sum(f.requests for _, f in results)
    print(f"\n{conversations} conversations, {requests} requests in {len(results)} sittings, {len(faulty)} with faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
