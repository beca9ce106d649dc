"""A pipeline of two ranks against upstream's, and against one rank of our own."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus, mlx_launch


def measure_two(run: Run, server: HttpServer, prompts: Prompts) -> None:
    common.decode(run, server, prompts)
    common.throughput(run, server, prompts)
    common.first_token(run, server, prompts)


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    plain = ["--threads", "1", "--dtype", "float32"]
    with (
        # Over the same transport as the peer; gRPC, the default, beside it.
        chorus(model, *plain, "--ranks", "2", "--transport", "ring", name="chorus, 2 ranks, ring") as ours,
        chorus(model, *plain, "--ranks", "2", "--transport", "grpc", name="chorus, 2 ranks, grpc") as grpc,
        chorus(model, *plain, name="chorus, 1 rank") as single,
        mlx_launch(model, "--pipeline", ranks=2, threads=1, name="mlx_lm.server, 2 ranks, ring") as peer,
    ):
        common.warm(peer, prompts, long_prompt=True)
        peer.pause()
        common.warm(ours, prompts, long_prompt=True)
        common.warm(grpc, prompts, long_prompt=True)
        common.warm(single, prompts)

        def measure_peer() -> None:
            with awake(peer):
                measure_two(run, peer, prompts)

        def measure_single() -> None:
            common.decode(run, single, prompts)
            common.throughput(run, single, prompts)

        run.interleave(
            measure_single,
            lambda: measure_two(run, ours, prompts),
            lambda: measure_two(run, grpc, prompts),
            measure_peer,
        )
    return [
        Goal(common.DECODE, ours.name, ">=", 1.8, against=peer.name),
        Goal(common.THROUGHPUT, ours.name, ">=", 3, against=peer.name),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 0.6, against=peer.name),
        Goal(common.DECODE, ours.name, ">=", 0.9, against=single.name),
    ]


BENCHMARK = Benchmark(
    "pipeline", "two pipeline ranks against mlx.launch --pipeline, one BLAS thread per rank everywhere", measure
)
