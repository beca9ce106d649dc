"""What the leader adds to a decode step: against a bare loop over the same layers, and where its time goes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.leading import BARE, LEADER, LEADER_HEARD, LEADER_SAMPLED, PARTS, Decoding
from benchmarks.models import AGENT, LLAMA_MLP_14336, LLAMA_MLP_14336_4BIT, model_folder
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Options, Run
from chorus.platform.cpu import cores

STEP, STEP_CPU = "a decode step", "CPU time of the deciding thread in a step"
MORE, MORE_CPU = "ms of a step more than the bare loop's", "ms of that CPU time more than the bare loop's"
PART = "of the step of a leader that is heard"
MOST_MORE_MS = 1.5
WARM_STEPS = 8
SIDES = (BARE, LEADER, LEADER_HEARD, LEADER_SAMPLED)


def model_of(options: Options) -> Path:
    if options.large:
        return model_folder(LLAMA_MLP_14336_4BIT if options.bits else LLAMA_MLP_14336)
    return model_folder(AGENT)


def measure(run: Run) -> list[Goal]:
    rows, prompt = (8, 32) if run.options.quick else (32, 300)
    steps = run.options.tokens
    model = model_of(run.options)
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    run.notes.append(f"{model.name}, {rows} unequal rows of about {prompt} tokens, {threads} threads on a CPU")
    with Decoding(model, threads=threads) as decoding:
        run.say("the model is loaded")
        most = WARM_STEPS + 2 * steps * run.options.rounds + 8
        for side in SIDES:
            decoding.begin(side, rows, prompt, most)
            decoding.steps(side, WARM_STEPS)

        def timed(side: str) -> None:
            taken = decoding.steps(side, steps)
            run.samples.add(STEP, "ms", side, 1000 * taken.seconds)
            run.samples.add(STEP_CPU, "ms", side, 1000 * taken.cpu_seconds)

        def parts() -> None:
            for part, seconds in decoding.parts(LEADER_HEARD, steps).items():
                run.samples.add(PART, "ms", part, 1000 * seconds)

        run.interleave(*(partial(timed, side) for side in SIDES))
        # Afterwards, since looking costs a little too.
        run.interleave(parts)
    for measured, more in ((STEP, MORE), (STEP_CPU, MORE_CPU)):
        figures = run.samples.figures[measured]
        for side in SIDES[1:]:
            for own, bare in zip(figures[side], figures[BARE], strict=True):
                run.samples.add(more, "ms", side, own - bare)
    assert set(run.samples.figures[PART]) == set(PARTS)
    return [Goal(MORE, side, "<=", MOST_MORE_MS) for side in (LEADER, LEADER_HEARD)]


BENCHMARK = Benchmark("step", "the leader's decode step in process against a bare loop, and its time by part", measure)
