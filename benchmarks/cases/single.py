"""What the server costs: against generating in process, and against upstream's server at 1, 8 and 16 streams."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.inprocess import InProcess
from benchmarks.models import FLOAT32_SUFFIX, SMOLLM2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus, mlx_lm_server

STREAMS = (common.STREAMS, common.MANY_STREAMS)


def measure(run: Run) -> list[Goal]:
    name = run.options.model
    model = model_folder(name + FLOAT32_SUFFIX if name == SMOLLM2 else name)
    prompts = Prompts(model, run.options.seed)
    threads = common.peer_threads(1)
    run.notes.append(f"{name} in float32, {threads} BLAS threads for the others, Chorus as it chooses itself")
    with (
        chorus(model, "--dtype", "float32") as ours,
        mlx_lm_server(model, threads=threads) as peer,
        InProcess(model, threads=threads) as bare,
    ):
        common.warm(ours, prompts)
        common.warm(peer, prompts)
        peer.pause()
        bare.generate(prompts.of(common.SHORT_PROMPT), 4)

        def bare_decode() -> None:
            answer = bare.generate(prompts.of(common.SHORT_PROMPT), run.options.tokens)
            common.add_decode(run, bare.name, answer)

        def measure_streams(server: HttpServer) -> None:
            common.decode(run, server, prompts)
            for streams in STREAMS:
                common.throughput(run, server, prompts, streams)

        def measure_peer() -> None:
            with awake(peer):
                measure_streams(peer)

        run.interleave(lambda: measure_streams(ours), bare_decode, measure_peer)
    return [
        Goal(common.DECODE, ours.name, ">=", 0.9, against=bare.name),
        Goal(common.DECODE, ours.name, ">=", 1.0, against=peer.name),
        *(Goal(common.throughput_of(streams), ours.name, ">=", 1.1, against=peer.name) for streams in STREAMS),
    ]


BENCHMARK = Benchmark("single", "one rank over HTTP against mlx_lm in process and mlx_lm.server, same BLAS", measure)
