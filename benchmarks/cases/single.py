"""What the server costs: one stream against generating in process, eight against upstream's server."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.inprocess import InProcess
from benchmarks.models import FLOAT32_SUFFIX, SMOLLM2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import chorus, mlx_lm_server
from chorus.platform import cores


def measure(run: Run) -> list[Goal]:
    name = run.options.model
    model = model_folder(name + FLOAT32_SUFFIX if name == SMOLLM2 else name)
    prompts = Prompts(model, run.options.seed)
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    run.notes.append(f"{name} in float32, {threads} BLAS threads on every side")
    with (
        chorus(model, "--dtype", "float32", "--threads", str(threads)) as ours,
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

        def peer_throughput() -> None:
            with awake(peer):
                common.throughput(run, peer, prompts)

        run.interleave(
            lambda: common.decode(run, ours, prompts),
            bare_decode,
            lambda: common.throughput(run, ours, prompts),
            peer_throughput,
        )
    return [
        Goal(common.DECODE, ours.name, ">=", 0.9, against=bare.name),
        Goal(common.THROUGHPUT, ours.name, ">=", 1.3, against=peer.name),
    ]


BENCHMARK = Benchmark("single", "one rank over HTTP against mlx_lm in process and mlx_lm.server, same BLAS", measure)
