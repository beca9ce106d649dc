"""What the planner promises against what is measured, for three splits of one model; and how long it takes to plan."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cases import common
from benchmarks.load import one_stream
from benchmarks.models import QWEN2, model_folder
from benchmarks.planned import NODES, planning_seconds
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, chorus
from chorus.cluster.profile.machine import Profile, fresh_profile, node_of
from chorus.planning.costs import Links, Workload
from chorus.planning.facts import read_facts
from chorus.planning.nodes import LINK_KINDS
from chorus.planning.plan import Plan
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest

SPLITS = ("8,8", "12,4", "4,12")
RANKS = 2
MEMORY_FRACTION = 0.8

BYTES = "weights of the ranks"
BYTES_ERROR = "error of the predicted weights, worst rank"
TOKEN = "time per token, 1 stream"
SPEED = "decode, 1 stream"
FACTOR = "predicted / measured time per token"
RATIO_ERROR = f"error of the predicted ratio to split {SPLITS[0]}"
PLANNING = f"CPU time of one plan for {NODES} nodes"


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    run.say("measuring this machine for the planner")
    found = fresh_profile(threads=1)
    run.notes.append(
        f"the profile that predictions come from: {found.rates.bandwidth / 1e9:.3g} GB/s, "
        f"{found.rates.flops / 1e9:.3g} Gflop/s, {found.rates.layer_seconds * 1e6:.3g} µs a layer, 1 thread"
    )
    plans = {split: _planned(model, found, split, run.options.tokens) for split in SPLITS}
    with (
        _served(model, SPLITS[0]) as first,
        _served(model, SPLITS[1]) as second,
        _served(model, SPLITS[2]) as third,
    ):
        servers = dict(zip(SPLITS, (first, second, third), strict=True))
        for split, server in servers.items():
            common.warm(server, prompts)
            _compare_bytes(run, split, plans[split], server)

        def decode(split: str) -> None:
            answer = one_stream(servers[split], prompts.of(common.SHORT_PROMPT), run.options.tokens)
            _add_speed(run, f"measured, {split}", 1 / answer.decode_rate)
            _add_speed(run, f"predicted, {split}", plans[split].prediction.token_seconds)

        run.interleave(*(lambda split=split: decode(split) for split in SPLITS))
    _compare_speeds(run)
    for question, seconds in planning_seconds(run.options.seed):
        words = f"{question.layers} layers of {question.layer_bytes / 1e9:g} GB, {question.prompt}-token prompt"
        run.samples.add(PLANNING, "s", words, seconds)
    return [
        *(Goal(BYTES_ERROR, split, "<=", 5) for split in SPLITS),
        *(Goal(RATIO_ERROR, split, "<=", 25) for split in SPLITS[1:]),
        *(Goal(PLANNING, side, "<=", 1) for side in run.samples.figures[PLANNING]),
    ]


def _served(model: Path, split: str) -> HttpServer:
    options = ("--split", split, "--transport", "grpc", "--threads", "1", "--dtype", "float32")
    return chorus(model, *options, name=f"chorus, split {split}")


def _planned(model: Path, found: Profile, split: str, tokens: int) -> Plan:
    """For the very request that is measured."""
    nodes = [node_of(found, f"rank{rank}", MEMORY_FRACTION, RANKS) for rank in range(RANKS)]
    work = Workload(prompt=common.SHORT_PROMPT, output=tokens, context=2048, dtype="float32")
    layers = tuple(int(part) for part in split.split(","))
    return plan(read_facts(model), nodes, Links(LINK_KINDS["loopback"]), work, PlanRequest("custom", layers=layers))


def _compare_bytes(run: Run, split: str, made: Plan, server: HttpServer) -> None:
    loaded = {int(rank["rank"]): int(rank["weight_bytes"]) for rank in server.get("/model/info")["ranks"]}
    errors = []
    for rank in made.ranks:
        run.samples.add(BYTES, "MB", f"predicted, {split}, rank {rank.rank}", rank.weight_bytes / 1e6)
        run.samples.add(BYTES, "MB", f"measured, {split}, rank {rank.rank}", loaded[rank.rank] / 1e6)
        errors.append(abs(rank.weight_bytes / loaded[rank.rank] - 1))
    run.samples.add(BYTES_ERROR, "%", split, 100 * max(errors))


def _add_speed(run: Run, side: str, token_seconds: float) -> None:
    run.samples.add(TOKEN, "ms", side, 1e3 * token_seconds)
    run.samples.add(SPEED, "tok/s", side, 1 / token_seconds)


def _compare_speeds(run: Run) -> None:
    """Within each round. A model that is wrong by one factor has right ratios: the factor is shown beside them."""
    times = run.samples.figures[TOKEN]
    for number in range(len(times[f"measured, {SPLITS[0]}"])):
        factors = {
            split: times[f"predicted, {split}"][number] / times[f"measured, {split}"][number] for split in SPLITS
        }
        for split, factor in factors.items():
            run.samples.add(FACTOR, "×", split, factor)
            if split != SPLITS[0]:
                run.samples.add(RATIO_ERROR, "%", split, 100 * abs(factors[SPLITS[0]] / factor - 1))


BENCHMARK = Benchmark("planner", "predicted against measured for three splits, and the time of planning", measure)
