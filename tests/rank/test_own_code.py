"""Models that bring their own architecture as Python code: run when their owner says so, over stages too."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from chorus.rank.load import LoadError, load_shard, stored_layers
from chorus.rank.pipeline.stage import check_boundaries
from chorus.rank.upstream.weights import read_config
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = write_tiny_model(tmp_path / "model", "llama")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "house", "model_file": "house.py"}))
    (model / "house.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    return model


def test_without_leave_the_code_is_not_run(folder: Path) -> None:
    (folder / "house.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(LoadError, match=r"code of its own \(house\.py\).*--trust-remote-code"):
        load_shard(folder, range)


def test_with_leave_two_stages_say_what_the_whole_says(folder: Path) -> None:
    layers = stored_layers(folder)
    check_boundaries(read_config(folder), [2])
    whole = load_shard(folder, range, trust_remote_code=True).stage
    first = load_shard(folder, lambda total: range(2), trust_remote_code=True).stage
    last = load_shard(folder, lambda total: range(2, layers), trust_remote_code=True).stage
    tokens = mx.array([[5, 6, 7]])
    passed = first.forward(tokens, first.new_cache())
    said = last.forward(tokens, last.new_cache(), passed)[0]
    assert mx.array_equal(said, whole.forward(tokens, whole.new_cache())[0])


def test_code_that_is_named_and_not_there_is_told(folder: Path) -> None:
    (folder / "house.py").unlink()
    with pytest.raises(LoadError, match=r"names house\.py as the model's code, and it is not in"):
        load_shard(folder, range, trust_remote_code=True)
