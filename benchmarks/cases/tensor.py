"""Tensor parallelism over two ranks against one rank of our own and upstream's ring; and what idle ranks cost."""

from __future__ import annotations

import time

from benchmarks.cases import common
from benchmarks.machine import cpu_of
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus, mlx_launch, rank_processes

RANKS = 2
IDLE_SECONDS = 10.0
IDLE = f"CPU while idle, over {IDLE_SECONDS:g} s"


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    threads = common.peer_threads(RANKS)
    parallel = ["--ranks", str(RANKS), "--transport", "mpi", "--parallel", "tensor"]
    with (
        chorus(model, "--dtype", "float32", *parallel, name="chorus, 2 ranks, mpi") as ours,
        # With a rank's share of the cores: what is asked of it is what dividing gains.
        chorus(model, "--dtype", "float32", "--threads", str(threads), name="chorus, 1 rank") as single,
        mlx_launch(model, ranks=RANKS, threads=threads, name="mlx_lm.server, 2 ranks, ring") as peer,
    ):
        common.warm(peer, prompts)
        peer.pause()
        common.warm(ours, prompts, long_prompt=True)
        common.warm(single, prompts, long_prompt=True)

        def measure_peer() -> None:
            with awake(peer):
                common.decode(run, peer, prompts)
                common.throughput(run, peer, prompts)

        def measure_own(server: HttpServer) -> None:
            common.decode(run, server, prompts)
            common.throughput(run, server, prompts)
            common.first_token(run, server, prompts)

        run.interleave(lambda: measure_own(single), lambda: measure_own(ours), measure_peer)
        _measure_idle(run, ours)
    return [
        Goal(common.DECODE, ours.name, ">=", 1.1, against=single.name),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 0.65, against=single.name),
        Goal(common.DECODE, ours.name, ">=", 4, against=peer.name),
        Goal(common.THROUGHPUT, ours.name, ">=", 3, against=peer.name),
        *(Goal(IDLE, _side(rank), "<=", 2) for rank in range(RANKS)),
    ]


def _measure_idle(run: Run, server: HttpServer) -> None:
    ranks = rank_processes(server)
    before, begin = cpu_of(ranks.values()), time.monotonic()
    time.sleep(IDLE_SECONDS)  # the window that is measured
    after, elapsed = cpu_of(ranks.values()), time.monotonic() - begin
    for rank, process in ranks.items():
        used = after[process.pid] - before[process.pid]
        run.samples.add(IDLE, "% of a core", _side(rank), 100 * used / elapsed)


def _side(rank: int) -> str:
    return f"rank {rank}"


BENCHMARK = Benchmark("tensor", "two tensor ranks over mpi against one rank and mlx.launch over ring", measure)
