"""Loading from one folder per rank against loading the same split from the original folder."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.models import LLAMA, QWEN2, model_folder
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, chorus, rank_processes
from chorus.models import LocalModel
from chorus.models.preshard.write import write_preshard

START = "start until ready, weights in the page cache"
READ = "bytes read by rank 1"
ORIGINAL, PRESHARD = "original folder", "one folder per rank"


def measure(run: Run) -> list[Goal]:
    name, split = (QWEN2, (12, 4)) if run.options.quick else (LLAMA, (20, 10))
    model = model_folder(name)
    shown = ",".join(map(str, split))
    run.notes.append(f"{name} split {shown}; both sides are started in turns, the first start of each is not counted")
    with tempfile.TemporaryDirectory(prefix="chorus-benchmark-parts-") as folder:
        parts = Path(folder) / "parts"
        written = write_preshard(LocalModel(name, name, model), split, parts)
        run.notes.append(
            f"rank 1 has {written[1].nbytes / 1e6:.0f} MB of {sum(p.nbytes for p in written) / 1e6:.0f} MB"
        )
        sides = {ORIGINAL: (model, ("--split", shown)), PRESHARD: (parts, ())}

        def start(side: str, counted: bool = True) -> None:
            path, options = sides[side]
            begin = time.perf_counter()
            with chorus(path, *options, "--threads", "1", "--dtype", "float32", name=side) as server:
                if counted:
                    run.samples.add(START, "s", side, time.perf_counter() - begin)
                    run.samples.add(READ, "MB", side, _bytes_read(server) / 1e6)

        for side in sides:
            start(side, counted=False)
        run.interleave(*(lambda side=side: start(side) for side in sides))
    return [Goal(START, PRESHARD, "<=", 1.1, against=ORIGINAL), Goal(READ, PRESHARD, "<=", 1.05, against=ORIGINAL)]


def _bytes_read(server: HttpServer) -> int:
    """All that the process read so far, libraries too, as Linux counts it."""
    lines = Path(f"/proc/{rank_processes(server)[1].pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


BENCHMARK = Benchmark("preshard", "starting from one folder per rank against the original folder", measure)
