"""A pipeline of two ranks against upstream's, and against one rank of our own."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.models import QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus, mlx_launch

RANKS = 2
STREAMS = (common.STREAMS, common.MANY_STREAMS)


def measure_two(run: Run, server: HttpServer, prompts: Prompts) -> None:
    common.decode(run, server, prompts)
    for streams in STREAMS:
        common.throughput(run, server, prompts, streams)
    common.first_token(run, server, prompts)


def measure(run: Run) -> list[Goal]:
    model = model_folder(QWEN2)
    prompts = Prompts(model, run.options.seed)
    plain = ["--dtype", "float32"]
    threads = common.peer_threads(RANKS)
    run.notes.append(f"{threads} BLAS threads for each rank of the peer, Chorus as it chooses itself")
    with (
        # Over the same transport as the peer; gRPC, the default, beside it.
        chorus(model, *plain, "--ranks", str(RANKS), "--transport", "ring", name="chorus, 2 ranks, ring") as ours,
        chorus(model, *plain, "--ranks", str(RANKS), "--transport", "grpc", name="chorus, 2 ranks, grpc") as grpc,
        # With a rank's share of the cores: what is asked of it is what dividing costs.
        chorus(model, *plain, "--threads", str(threads), name="chorus, 1 rank") as single,
        mlx_launch(model, "--pipeline", ranks=RANKS, threads=threads, name="mlx_lm.server, 2 ranks, ring") as peer,
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
            for streams in STREAMS:
                common.throughput(run, single, prompts, streams)

        run.interleave(
            measure_single,
            lambda: measure_two(run, ours, prompts),
            lambda: measure_two(run, grpc, prompts),
            measure_peer,
        )
    return [
        Goal(common.DECODE, ours.name, ">=", 2.2, against=peer.name),
        *(Goal(common.throughput_of(streams), ours.name, ">=", 3, against=peer.name) for streams in STREAMS),
        Goal(common.FIRST_TOKEN, ours.name, "<=", 0.6, against=peer.name),
        Goal(common.DECODE, ours.name, ">=", 0.9, against=single.name),
    ]


BENCHMARK = Benchmark("pipeline", "two pipeline ranks against mlx.launch --pipeline, same BLAS", measure)
