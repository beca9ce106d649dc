"""Two machines know whether they have the same model without reading its weights; what differs is named."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from chorus.models import ModelError, tensor_index
from chorus.models.headers import MAX_BYTES, ModelHeaders, difference, read_headers
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("one") / "tiny", num_hidden_layers=2)


def changed_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def told(one: Path, other: Path) -> str | None:
    """As the rank that has the one says it to the leader that has the other."""
    return difference(read_headers(one), ModelHeaders.unpacked(read_headers(other).packed()))


def test_copies_are_the_same_also_where_one_is_cut_into_other_files(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")
    changed_config(tmp_path / "copy", transformers_version="9.9", _name_or_path="/home/somebody")
    assert told(model, tmp_path / "copy") is None
    in_parts = write_tiny_model(tmp_path / "parts", num_hidden_layers=2, shards=3)
    assert told(model, in_parts) is None
    assert read_headers(model).digest() == read_headers(in_parts).digest()


def test_another_configuration_is_named_by_its_key(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=2, quantize={"group_size": 32, "bits": 4})
    said = told(model, other)
    assert said is not None
    assert said.startswith("config.json has quantization nothing here and {")
    longer = write_tiny_model(tmp_path / "longer", num_hidden_layers=3)
    assert told(model, longer) == "config.json has num_hidden_layers 2 here and 3 there"


def test_another_tensor_is_named(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=2, dtype="float16")
    changed_config(other, **json.loads((model / "config.json").read_text()))
    first = min(tensor_index(model))
    said = told(model, other)
    assert said is not None
    assert said.startswith(f"tensor {first} is F32 [")
    assert " here and F16 [" in said


def test_a_tensor_too_many_is_named(model: Path) -> None:
    mine = read_headers(model)
    more = ModelHeaders(mine.config, {**mine.tensors, "extra": "F32 [1]"}, mine.samples)
    assert difference(mine, more) == "tensor extra is there and not here"
    assert difference(more, mine) == "tensor extra is here and not there"


def test_another_training_of_the_same_architecture_is_another_model(model: Path, tmp_path: Path) -> None:
    """Nothing in its headers says so, and its text would be garbage beside the first one's layers."""
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=2, seed=1)
    said = told(model, other)
    assert said is not None
    assert said.endswith("has other values here than there")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        zlib.compress(b"[]"),
        zlib.compress(b'{"config": {}, "tensors": {"a": 1}, "samples": {}}'),
        zlib.compress(b'{"config": [], "tensors": {}, "samples": {}}'),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"{}")[:-3],
        zlib.compress(b" " * (MAX_BYTES + 1)),
    ],
)
def test_what_is_no_description_of_a_model_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="rank 0 does not say what its model is like"):
        ModelHeaders.unpacked(data)


def test_somebody_elses_words_do_nothing_to_a_terminal() -> None:
    mine = ModelHeaders({"a": 1}, {}, {})
    said = difference(mine, ModelHeaders({"a": 1}, {"\x1b[2J" + "x" * 500: "F32 [1]"}, {}))
    assert said is not None
    assert said.isprintable()
    assert len(said) < 120
