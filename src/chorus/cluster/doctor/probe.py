"""What MLX itself reports and how fast it multiplies: `python -m chorus.cluster.doctor.probe`, a process of its own.

A broken MLX can end its process; whoever asks must live to say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from types import ModuleType

from chorus.errors import ChorusError
from chorus.platform import prepare
from chorus.platform.accelerator import mpi
from chorus.platform.cpu.blas import set_threads
from chorus.platform.memory.amounts import device_memory
from chorus.transport import catalog

_ROWS, _INNER, _COLUMNS = 128, 1024, 1024
_BENCHMARK_SECONDS = 0.3


@dataclass(frozen=True)
class Probe:
    device: str
    device_total: int
    device_available: int
    collectives: tuple[str, ...]
    blas: str
    blas_path: str
    blas_detail: str
    threads: int
    gflops: float
    gflops_one_thread: float


def run_probe(timeout: float = 120) -> Probe | str:
    """The figures, or one line that says why there are none."""
    command = [sys.executable, "-m", "chorus.cluster.doctor.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"MLX did not answer within {timeout:.0f} s"
    if done.returncode == 0:
        return parse(done.stdout)
    if done.returncode < 0:
        return f"MLX ended with signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"MLX ended with exit code {done.returncode}"


def parse(output: str) -> Probe | str:
    """Only the last line is ours: libraries may print above it."""
    try:
        data = json.loads(output.strip().splitlines()[-1])
        return Probe(**{**data, "collectives": tuple(data["collectives"])})
    except (IndexError, KeyError, TypeError, ValueError):
        return f"MLX answered with something else: {output.strip()[-200:]!r}"


def _measure() -> Probe:
    prepared = prepare()
    if library := mpi.library():
        os.environ[mpi.LIBRARY_VARIABLE] = str(library)
    import mlx.core as mx

    memory = device_memory(mx)
    blas = prepared.blas
    with_all = _gflops(mx)
    set_threads(1)
    return Probe(
        device=str(mx.device_info().get("device_name", mx.default_device())),
        device_total=memory.total,
        device_available=memory.available,
        collectives=tuple(name for name in catalog.collectives() if mx.distributed.is_available(name)),
        blas=blas.source if blas else "MLX's own",
        blas_path=str(blas.path) if blas and blas.path else "",
        blas_detail=blas.detail if blas else "",
        threads=prepared.threads,
        gflops=with_all,
        gflops_one_thread=_gflops(mx),
    )


def _gflops(mx: ModuleType) -> float:
    """The best of several products: other processes can only slow one down."""
    left, right = mx.random.normal((_ROWS, _INNER)), mx.random.normal((_INNER, _COLUMNS))
    mx.eval(left @ right)
    best = float("inf")
    end = time.perf_counter() + _BENCHMARK_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        mx.eval(left @ right)
        best = min(best, time.perf_counter() - start)
    return round(2 * _ROWS * _INNER * _COLUMNS / best / 1e9, 1)


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(_measure())))
    except ChorusError as error:
        sys.exit(str(error))
