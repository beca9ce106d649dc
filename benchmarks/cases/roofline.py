"""How near each phase comes to what the machine could do: bytes and operations that must move, at measured rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks import plot
from benchmarks.cases.step import model_of
from benchmarks.leading import BARE, LEADER, Decoding
from benchmarks.report import Goal, Samples
from benchmarks.roofline import Loaded, Rates, Work, least_seconds
from benchmarks.run import Benchmark, Run
from chorus.cluster.profile.machine import Profile, fresh_profile
from chorus.planning.facts import read_facts
from chorus.platform.accelerator.dtype import DtypePolicy, planned_policy
from chorus.platform.cpu import cores

WEIGHTS, CACHE, ACTIVATIONS = "weights that must be read", "cache that must move", "activations that must move"
OPERATIONS, LEAST, TAKEN = "operations of products", "least time", "measured time"
REACHED = "of the roofline reached"
RATE, BANDWIDTH = "rate of products here", "bandwidth here"
DECODE = "decode, "
WARM_STEPS = 4


@dataclass(frozen=True)
class Shape:
    rows: tuple[int, ...]
    context: int
    """Of each row that decodes, about."""
    prompt: int
    chunks: tuple[int, ...]


LARGE = Shape(rows=(1, 8, 32), context=300, prompt=4096, chunks=(512, 2048))
USUAL = Shape(rows=(1, 8, 32), context=300, prompt=512, chunks=(128, 512))
QUICK = Shape(rows=(1, 4), context=24, prompt=64, chunks=(32,))


def decode_phase(rows: int) -> str:
    return f"{DECODE}{rows} row{'s' if rows > 1 else ''}"


def prefill_phase(chunk: int) -> str:
    return f"prompt by {chunk:,}"


def measure(run: Run) -> list[Goal]:
    options = run.options
    shape = LARGE if options.large else QUICK if options.quick else USUAL
    model = model_of(options)
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    run.say("measuring this machine")
    profile = fresh_profile(threads)
    with Decoding(model, threads=threads) as decoding:
        run.say("the model is loaded")
        policy = planned_policy(decoding.ready["policy"])
        loaded = Loaded(read_facts(model), policy, decoding.ready["dtype"])
        rates = rates_of(profile, policy, decoding.product_rate(max(shape.chunks)))
        run.samples.add(BANDWIDTH, "GB/s", profile.chip, rates.bandwidth / 1e9)
        run.samples.add(RATE, "Gop/s", profile.chip, rates.operations / 1e9)
        run.notes.append(
            f"{model.name} as {policy.name}; rows of about {shape.context} tokens, a prompt of {shape.prompt:,}; "
            f"on a CPU {threads} threads"
        )
        for chunk in shape.chunks:
            add_work(run, prefill_phase(chunk), loaded.prefill(shape.prompt, chunk), rates)
            decoding.prefill(shape.prompt, chunk)
        run.interleave(*(partial(_prefill, run, decoding, shape.prompt, chunk) for chunk in shape.chunks))
        for rows in shape.rows:
            # Steps make the rows longer: half of them, on average.
            steps = run.options.tokens * run.options.rounds + WARM_STEPS
            add_work(run, decode_phase(rows), [loaded.decode(rows, shape.context + steps // 2)], rates)
            for side in (BARE, LEADER):
                decoding.begin(side, rows, shape.context, steps + WARM_STEPS)
                decoding.steps(side, WARM_STEPS)
            run.interleave(*(partial(_decode, run, decoding, rows, side) for side in (BARE, LEADER)))
            for side in (BARE, LEADER):
                decoding.end(side)
    add_reached(run.samples)
    for line in table(run.samples):
        run.say(line)
    return []


def rates_of(profile: Profile, policy: DtypePolicy, product_rate: float) -> Rates:
    """Those of the products that this model has here."""
    found = profile.rates
    if policy.packed and found.kernel_bandwidth and found.kernel_flops:
        return Rates(found.kernel_bandwidth, found.kernel_flops)
    return Rates(found.bandwidth, max(found.flops, product_rate))


def add_work(run: Run, phase: str, forwards: list[Work], rates: Rates) -> None:
    whole = sum(forwards, Work())
    for measure, size in ((WEIGHTS, whole.weights), (CACHE, whole.cache), (ACTIVATIONS, whole.activations)):
        run.samples.add(measure, "GB", phase, size / 1e9)
    run.samples.add(OPERATIONS, "Gop", phase, whole.operations / 1e9)
    run.samples.add(LEAST, "ms", phase, 1000 * least_seconds(rates, forwards))


def _prefill(run: Run, decoding: Decoding, prompt: int, chunk: int) -> None:
    _add(run, f"{BARE}: {prefill_phase(chunk)}", decoding.prefill(prompt, chunk))


def _decode(run: Run, decoding: Decoding, rows: int, side: str) -> None:
    _add(run, f"{side}: {decode_phase(rows)}", decoding.steps(side, run.options.tokens).seconds)


def _add(run: Run, side: str, seconds: float) -> None:
    run.samples.add(TAKEN, "ms", side, 1000 * seconds)
    run.say(f"{side}: {1000 * seconds:.4g} ms")


def add_reached(samples: Samples) -> None:
    """The least time as a part of what was measured, round by round."""
    for side, figures in samples.figures[TAKEN].items():
        (least,) = samples.figures[LEAST][side.partition(": ")[2]]
        for figure in figures:
            samples.add(REACHED, "%", side, 100 * least / figure)


def table(samples: Samples) -> list[str]:
    """A line for each phase on each side."""
    columns = f"{'GB':>9} {'Gop':>9} {'least ms':>9} {'ms':>9} {'%':>5}"
    width = max(map(len, samples.figures[TAKEN]))
    lines = [f"{'':{width}} {columns}"]
    for side, taken in samples.figures[TAKEN].items():
        phase = side.partition(": ")[2]
        size = sum(samples.figures[part][phase][0] for part in (WEIGHTS, CACHE, ACTIVATIONS))
        operations, least = samples.figures[OPERATIONS][phase][0], samples.figures[LEAST][phase][0]
        figures = f"{size:9.4g} {operations:9.4g} {least:9.4g} {median(taken):9.4g} {100 * least / median(taken):5.1f}"
        lines.append(f"{side:{width}} {figures}")
    return lines


def drawn(samples: Samples) -> str:
    """By phase; the leader reads no prompt here that the bare loop does not read alike."""
    reached = samples.figures[REACHED]
    phases = list(samples.figures[LEAST])

    def figure(side: str, phase: str) -> float:
        return median(reached.get(f"{side}: {phase}") or reached[f"{BARE}: {phase}"])

    series = {side: [figure(side, phase) for phase in phases] for side in (BARE, LEADER)}
    across = [phase.removeprefix(DECODE) for phase in phases]
    return plot.lines("The roofline", "a prompt by chunk, decode by rows", "% of what could be", across, series)


BENCHMARK = Benchmark(
    "roofline", "what each phase must move and compute, and how near it comes to that", measure, drawn
)
