"""The most memory that each rank of an uneven pipeline ever held, against the tensors it owns."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.load import one_stream
from benchmarks.machine import peak_resident_bytes
from benchmarks.models import LLAMA, QWEN2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import ServerFailed, chorus, rank_processes

RELATIVE, FIXED_BYTES = 1.15, 250e6
PEAK = "peak memory / (1.15 × own tensors + 250 MB)"
PEAK_BYTES = "peak memory"
OWN_BYTES = "own tensors"


def measure(run: Run) -> list[Goal]:
    """Once only: a peak has no noise to take a median of."""
    name, split = (QWEN2, "10,4,2") if run.options.quick else (LLAMA, "20,7,3")
    model = model_folder(name)
    prompts = Prompts(model, run.options.seed)
    run.notes.append(f"{name} split {split}, rank 0 first")
    with chorus(model, "--split", split, "--threads", "1", "--dtype", "float32") as server:
        one_stream(server, prompts.of(common.SHORT_PROMPT), run.options.tokens)
        own = {int(rank["rank"]): int(rank["weight_bytes"]) for rank in server.get("/model/info")["ranks"]}
        processes = rank_processes(server)
        if own.keys() != processes.keys():
            raise ServerFailed(f"the server names ranks {sorted(own)}, but {sorted(processes)} are running")
        for rank, process in processes.items():
            peak = peak_resident_bytes(process.pid)
            run.samples.add(OWN_BYTES, "MB", f"rank {rank}", own[rank] / 1e6)
            run.samples.add(PEAK_BYTES, "MB", f"rank {rank}", peak / 1e6)
            run.samples.add(PEAK, "of the bound", f"rank {rank}", peak / allowed_bytes(own[rank]))
    return [Goal(PEAK, f"rank {rank}", "<=", 1) for rank in processes]


def allowed_bytes(own: int) -> float:
    return RELATIVE * own + FIXED_BYTES


BENCHMARK = Benchmark("memory", "peak resident memory of each rank of an uneven pipeline", measure)
