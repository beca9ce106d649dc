"""What each rank of this machine holds, where a strategy or proportions say so: what the nodes of a cluster would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chorus.config.engine import EngineSpec
from chorus.config.sources import load_settings
from chorus.deploy.local_plan import CannotDivide, local_plan
from chorus.deploy.nodes.plan import planned
from chorus.models import LocalModel
from chorus.planning.costs import Links, Machine
from chorus.planning.facts import read_facts
from tests.support.architectures import ARCHITECTURES
from tests.support.server import ChorusServer
from tests.support.tiny_model import override, write_random_model, write_tiny_model

LAYERS = 30
TWO_HERE = [
    {"device_id": "a", "hostname": "localhost", "role": "coordinator"},
    {"device_id": "b", "hostname": "127.0.0.1", "port": 50052},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = tmp_path_factory.mktemp("thirty") / "thirty"
    write_random_model(folder, override(ARCHITECTURES["llama"], {"num_hidden_layers": LAYERS}))
    return LocalModel("thirty", "thirty", folder)


def division(model: LocalModel, tmp_path: Path, **tree: Any) -> dict[str, tuple[int, ...]]:
    return local_plan(load_settings(None, tree, {}, tmp_path), model).division


def test_proportions_give_the_layers_here_that_they_give_over_nodes(model: LocalModel, tmp_path: Path) -> None:
    """`serve -c FILE` with custom_proportions [0.7, 0.3] is 21 and 9 layers of 30, as `up -c FILE` has it."""
    sharding = {"strategy": "custom", "custom_proportions": [0.7, 0.3]}
    assert division(model, tmp_path, devices=TWO_HERE, sharding=sharding) == {"split": (21, 9)}
    settings = load_settings(None, {"devices": TWO_HERE, "sharding": sharding}, {}, tmp_path)
    machines = [Machine(name, "cpu", 1 << 34, flops=1e12, bandwidth=1e10) for name in ("here", "b")]
    spec = EngineSpec(address="unix:/x", model_path=model.path)
    assert planned(machines, Links(), read_facts(model.path, "m"), spec, settings.sharding).split == (21, 9)


def test_proportions_alone_say_how_many_ranks_there_are(model: LocalModel, tmp_path: Path) -> None:
    assert division(model, tmp_path, sharding={"custom_proportions": [0.5, 0.3, 0.2]}) == {"split": (15, 9, 6)}


def test_a_strategy_divides_the_ranks_of_one_machine(model: LocalModel, tmp_path: Path) -> None:
    for strategy in ("uniform", "memory_proportional", "compute_proportional"):
        assert division(model, tmp_path, engine={"ranks": 2}, sharding={"strategy": strategy}) == {"split": (15, 15)}
    assert sum(division(model, tmp_path, devices=TWO_HERE)["split"]) == LAYERS


def test_proportions_of_slices_are_weights(model: LocalModel, tmp_path: Path) -> None:
    tensor = {"ranks": 2, "parallel": "tensor"}
    assert division(model, tmp_path, engine=tensor, sharding={"custom_proportions": [0.5, 0.5]}) == {"weights": (1, 1)}


def test_nobody_is_asked_where_a_split_is_given_or_nothing_is(model: LocalModel, tmp_path: Path) -> None:
    assert division(model, tmp_path, engine={"ranks": 2}) == {}
    assert division(model, tmp_path, engine={"split": [20, 10]}) == {}


def test_proportions_that_cannot_be_had_are_refused(model: LocalModel, tmp_path: Path) -> None:
    hybrid = {"ranks": 4, "parallel": "hybrid", "split": None}
    with pytest.raises(CannotDivide, match=r"sharding\.custom_proportions: a hybrid is given the layers of each stage"):
        division(model, tmp_path, engine=hybrid, sharding={"custom_proportions": [0.25] * 4})
    many = {"custom_proportions": [1 / 40] * 40}
    with pytest.raises(CannotDivide, match=r"sharding\.custom_proportions: 40 nodes cannot share 30 layers"):
        division(model, tmp_path, sharding=many)


@pytest.mark.parametrize("words", [["-c", "distributed_config.json"], ["--env", "MINIMAX_PIPELINE_SPLIT=6,2"]])
def test_a_server_holds_what_its_file_or_its_variables_lay_down(words: list[str], tmp_path: Path) -> None:
    """Two devices that are this machine, with their shares; the variable that mlx-lm's MiniMax server took."""
    folder = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, num_hidden_layers=8)
    laid_down = {"devices": TWO_HERE, "sharding": {"strategy": "custom", "custom_proportions": [0.75, 0.25]}}
    (tmp_path / "distributed_config.json").write_text(json.dumps(laid_down))
    with ChorusServer(folder, [*words, "--threads", "1"], tmp_path) as server:
        ranks = server.get("/model/info")["ranks"]
    assert [rank["layers"] for rank in ranks] == ["2-7", "0-1"]
