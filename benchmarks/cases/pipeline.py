"""A pipeline of two ranks against upstream's, and against one rank of our own."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import chorus, mlx_launch


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    two = ["--ranks", "2", "--transport", "grpc"]
    with (
        chorus(model, "--threads", "1", "--dtype", "float32", *two, name="chorus, 2 ranks") as ours,
        chorus(model, "--threads", "1", "--dtype", "float32", name="chorus, 1 rank") as single,
        mlx_launch(model, "--pipeline", ranks=2, threads=1, name="mlx_lm.server, 2 ranks, ring") as peer,
    ):
        common.warm(peer, prompts, long_prompt=True)
        peer.pause()
        common.warm(ours, prompts, long_prompt=True)
        common.warm(single, prompts)

        def measure_peer() -> None:
            with awake(peer):
                common.decode(run, peer, prompts)
                common.throughput(run, peer, prompts)
                common.first_token(run, peer, prompts)

        def measure_ours() -> None:
            common.decode(run, ours, prompts)
            common.throughput(run, ours, prompts)
            common.first_token(run, ours, prompts)

        run.interleave(lambda: common.decode(run, single, prompts), measure_ours, measure_peer)
    return [
        Goal(common.DECODE, ours.name, ">=", 1.8, against=peer.name),
        Goal(common.THROUGHPUT, ours.name, ">=", 3, against=peer.name),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 0.6, against=peer.name),
        Goal(common.DECODE, ours.name, ">=", 0.9, against=single.name),
    ]


BENCHMARK = Benchmark(
    "pipeline", "two pipeline ranks against mlx.launch --pipeline, one BLAS thread per rank everywhere", measure
)
