"""`python -m tests.chaos`: faults drawn at random, one after the other, under clients of every protocol.

Each fault is seen to have happened; then every request must have ended as it would have without it. What it did, to
whom, for how long and what was lost is printed as a table. All of it follows from the seed, but for the times.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.models import stored_default
from benchmarks.servers import end_cleanly_when_told
from tests.chaos import links, noted, page, peer
from tests.chaos.compare import differences
from tests.chaos.judge import judge
from tests.chaos.measure import Suffered, table
from tests.chaos.models import write_tiny
from tests.chaos.plan import SMOLLM2, TINY, Session, draw, draw_links, draw_localai
from tests.chaos.running import Held, hold
from tests.support.state import keep_apart

JUDGES = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="so many in all (200)")
    parser.add_argument("--seed", type=int, default=1, help="what everything follows from (1)")
    parser.add_argument("--localai", type=int, default=0, help="so many besides, with LocalAI's protocol (0)")
    parser.add_argument("--links", type=int, default=0, help="so many besides, of cables between hosts; needs root (0)")
    parser.add_argument("--only", help="sessions whose name has this in it, such as ring or grpc-3-tiny")
    parser.add_argument("--first", type=int, help="only so many faults of each session")
    parser.add_argument("--minutes", type=float, default=120, help="begin no other session after these (120)")
    parser.add_argument("--write", action="store_true", help="put the table, and the peer's, into docs/reliability.md")
    parser.add_argument("--keep", type=Path, help="keep logs and notes in this folder")
    given = parser.parse_args()
    end_cleanly_when_told()
    keep_apart()
    drawn = [*draw(given.seed, given.faults), *draw_localai(given.seed, given.localai)]
    if given.links and not links.possible():
        print("cables are left alone: that needs root on Linux")
    else:
        # The last ones: this process moves to one of the hosts.
        drawn += draw_links(given.seed, given.links)
    sessions = [
        Session(session.group, session.faults[: given.first])
        for session in drawn
        if (given.only or "") in session.group.name
    ]
    home = Path(tempfile.mkdtemp(prefix="chaos-run-"))
    try:
        suffered, problems = run(sessions, given.seed, given.minutes, given.keep or home / "kept", home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if given.write:
        page.write("faults", table(suffered))
        page.write("peer", peer.rows(peer.measure()))
    return 1 if problems else 0


def run(
    sessions: Sequence[Session], seed: int, minutes: float, kept: Path, home: Path
) -> tuple[list[Suffered], list[str]]:
    """What happened, and what is wrong."""
    models = {TINY: write_tiny(home / "tiny")}
    if any(session.group.model == SMOLLM2 for session in sessions):
        models[SMOLLM2] = stored_default()
    kept.mkdir(parents=True, exist_ok=True)
    began, all_held = time.monotonic(), []
    for session in sessions:
        if time.monotonic() - began > 60 * minutes:
            break
        print(f"{session.group.name}: {len(session.faults)} faults", flush=True)
        all_held.append(asyncio.run(hold(session, models[session.group.model], str(seed), kept)))
    problems = found_wrong(all_held, models)
    suffered = [one for held in all_held for one in held.suffered]
    print("", *table(suffered), "", sep="\n")
    for problem in problems:
        print(problem)
    requests = sum(len(held.exchanges) for held in all_held)
    lost = sum(one.lost for one in suffered)
    took = time.monotonic() - began
    print(f"{len(suffered)} faults, {requests} requests, {lost} lost, {len(problems)} problems, {took:.0f} s")
    if missing := len(sessions) - len(all_held):
        problems.append(f"{missing} sessions were not begun within {minutes:g} minutes")
        print(problems[-1])
    return suffered, problems


def found_wrong(all_held: Sequence[Held], models: dict[str, Path]) -> list[str]:
    """All that is not as it must be, and where."""
    with ThreadPoolExecutor(JUDGES) as judges:
        verdicts = list(judges.map(lambda held: judge(models[held.session.group.model], held.notes), all_held))
    looked, wrong = sum(verdict.looked for verdict in verdicts), sum(len(verdict.faults) for verdict in verdicts)
    print(f"{looked} answers were looked at, {wrong} are not the model's", flush=True)
    problems = []
    for held, verdict in zip(all_held, verdicts, strict=True):
        found = [f"{one.fault.name}: {problem}" for one in held.suffered for problem in one.problems]
        found += held.problems
        found += [f"{name}: {fault}" for name, fault in verdict.faults.items()]
        found += differences(models[held.session.group.model], held.exchanges, noted.read(held.notes))
        problems += [f"{held.session.group.name}: {problem}" for problem in found]
    return problems


if __name__ == "__main__":
    sys.exit(main())
