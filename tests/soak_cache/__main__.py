"""`python -m tests.soak_cache`: random conversations with engines that keep what they computed, each answer looked at.

Text with the cache must equal text without: every received token is compared with what the plain model says when it is
fed the same tokens. A failing run says how to repeat the sitting that failed: everything follows from the seed.
"""

from __future__ import annotations

import argparse
import sys

from tests.soak_cache import prepared

prepared.prepare()

from tests.soak_cache import jobs  # noqa: E402
from tests.soak_cache.cases import MATRIX, Case, Sitting, in_all, of_each  # noqa: E402
from tests.support.state import keep_apart  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_cache", description=__doc__)
    parser.add_argument("--conversations", type=int, default=300, help="of each case (300)")
    parser.add_argument("--in-all", type=int, help="so many instead, drawn from all cases")
    parser.add_argument("--seed", type=int, default=1, help="what everything follows from (1)")
    parser.add_argument("--case", action="append", type=Case.named, help="only this, such as qwen2-pipeline-2")
    parser.add_argument("--sitting", type=int, help="only this one of each case")
    parser.add_argument("--jobs", type=int, default=2, help="sittings at a time (2)")
    parser.add_argument("--minutes", type=float, default=120, help="begin no other sitting after these (120)")
    given = parser.parse_args()
    keep_apart()
    cases = given.case or MATRIX
    if given.sitting is not None:
        sittings = [Sitting(case, given.seed, given.sitting, given.conversations) for case in cases]
    elif given.in_all:
        sittings = in_all(cases, given.seed, given.in_all)
    else:
        sittings = of_each(cases, given.seed, given.conversations)
    results = jobs.run(sittings, given.jobs, 60 * given.minutes)
    faulty = [(sitting, found) for sitting, found in results if found.faults]
    for sitting, found in faulty:
        print(f"\n{sitting.case.name}, seed {sitting.seed}: {len(found.faults)} faults; again: {sitting.command}")
        print(*(f"  {fault}" for fault in found.faults[:10]), sep="\n")
    conversations, requests = sum(s.conversations for s, _ in results), sum(f.requests for _, f in results)
    print(f"\n{conversations} conversations, {requests} requests in {len(results)} sittings, {len(faulty)} with faults")
    if len(results) < len(sittings):
        print(f"{len(sittings) - len(results)} sittings were not begun within {given.minutes:g} minutes")
    return 1 if faulty or len(results) < len(sittings) else 0


if __name__ == "__main__":
    sys.exit(main())
