"""What storing one row of a batch costs the rows beside it."""

from __future__ import annotations

from benchmarks.models import AGENT, AGENT_TINY, HYBRID, HYBRID_TINY, model_folder
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.storing import Asked, steps

USUAL, STORING, AFTER = "as usual", "that stores a row", "after one that stored"
BOUND = 1.1
STORES = 4
"""A round: one step is soon measured, and noisy."""
SIDES = {"usual": USUAL, "storing": STORING, "after": AFTER}


def measure(run: Run) -> list[Goal]:
    names = (AGENT_TINY, HYBRID_TINY) if run.options.quick else (AGENT, HYBRID)
    asked = Asked(rows=8, tokens=150 if run.options.quick else 1500, rounds=run.options.rounds * STORES, between=5)
    run.notes.append(f"{asked.rows} rows of {asked.tokens:,} tokens on one rank in process, one BLAS thread")
    goals = []
    for name in names:
        run.say(name)
        measured = f"a decode step, {name}"
        for figures in steps(model_folder(name), asked, threads=1):
            for key, side in SIDES.items():
                run.samples.add(measured, "ms", side, 1000 * figures[key])
        goals += [Goal(measured, side, "<=", BOUND, against=USUAL) for side in (STORING, AFTER)]
    return goals


BENCHMARK = Benchmark("storing", "a decode step of eight long rows, when one of them is stored", measure)
