"""Tensor parallelism inside the stages of a pipeline: 2 stages of 2 ranks, in real processes over MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chorus.models.preshard.folder import PLAN_FILE
from chorus.rank.load import stored_layers
from tests.rank.tensor.cases import THREE_GROUPS
from tests.support.mpi_group import check_as_alone, run_group
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("name", "weights", "sizes"), [("llama", (2, 1), THREE_GROUPS), ("qwen3_moe", (1, 1), {})])
def test_two_stages_of_two_ranks_say_what_the_whole_model_says(
    name: str, weights: tuple[int, ...], sizes: dict[str, int], tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "model", name, **sizes)
    layers = stored_layers(model)
    answer = run_group(model, tmp_path, 4, parallel="hybrid", split=(layers - 2, 2), weights=weights)
    assert [held[:2] for held in answer["held"]] == [[2, layers], [2, layers], [0, 2], [0, 2]]
    alone = check_as_alone(model, answer)
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
