from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save, save_file

from chorus.models import ModelError, files_holding, tensor_index, weight_map
from chorus.models.safetensors_writer import TensorSpec, write_safetensors

ARRAYS: dict[str, np.ndarray] = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.ones(5, np.float16),
    "c": np.zeros((2, 0), np.uint8),
}


def sharded(folder: Path) -> Path:
    save_file({"a": ARRAYS["a"]}, folder / "model-1.safetensors")
    save_file({"b": ARRAYS["b"]}, folder / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_the_index_points_at_each_tensor_s_bytes(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "model.safetensors")
    index = tensor_index(tmp_path)
    assert index.keys() == ARRAYS.keys()
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, array in ARRAYS.items():
        info = index[name]
        assert (info.shape, info.nbytes) == (array.shape, array.nbytes)
        assert data[info.start : info.end] == array.tobytes()


def test_shards_are_one_model(tmp_path: Path) -> None:
    index = tensor_index(sharded(tmp_path))
    assert {name: info.file.name for name, info in index.items()} == weight_map(tmp_path)
    assert files_holding(["b"], weight_map(tmp_path)) == ["model-2.safetensors"]
    with pytest.raises(ModelError, match="No file holds tensor z"):
        files_holding(["b", "z"], weight_map(tmp_path))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model-2.safetensors"):
        tensor_index(tmp_path)


def test_a_tensor_that_the_index_promises_must_be_there(tmp_path: Path) -> None:
    save_file({"other": ARRAYS["b"]}, sharded(tmp_path) / "model-2.safetensors")
    with pytest.raises(ModelError, match=r"model-2.safetensors lacks tensor b"):
        tensor_index(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": ARRAYS["a"]}, tmp_path / "model-1.safetensors")
    save_file({"a": ARRAYS["a"]}, tmp_path / "model-2.safetensors")
    with pytest.raises(ModelError, match="Tensor a is both in model-1"):
        tensor_index(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"model.safetensors.index.json"):
        tensor_index(tmp_path)


def test_an_index_may_not_point_outside_its_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside the model's folder"):
        weight_map(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no model\*.safetensors"):
        tensor_index(tmp_path)


def test_a_header_that_does_not_match_the_bytes_names_the_tensor(tmp_path: Path) -> None:
    data = save(ARRAYS)
    (tmp_path / "model.safetensors").write_bytes(data.replace(b'"shape":[3,4]', b'"shape":[3,5]'))
    with pytest.raises(ModelError, match=r"tensor a \(F32 \[3, 5\]\) does not match"):
        tensor_index(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data + b"more")
    with pytest.raises(ModelError, match="4 bytes belong to no tensor"):
        tensor_index(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")
    with pytest.raises(ModelError, match="corrupt header"):
        tensor_index(tmp_path)


@given(keep=st.integers(0, len(save(ARRAYS)) - 1))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_always_found(tmp_path: Path, keep: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(save(ARRAYS)[:keep])
    with pytest.raises(ModelError, match=r"model.safetensors"):
        tensor_index(tmp_path)


def test_the_writer_writes_what_the_library_reads(tmp_path: Path) -> None:
    specs = [TensorSpec("a", "F32", (3, 4)), TensorSpec("half", "BF16", (4,))]
    file = tmp_path / "model.safetensors"
    write_safetensors(file, specs, iter([ARRAYS["a"], np.array([0x3F80] * 4, np.uint16)]))
    with safe_open(file, "numpy") as opened:
        assert set(opened.keys()) == {"a", "half"}
        assert np.array_equal(opened.get_tensor("a"), ARRAYS["a"])
    assert tensor_index(tmp_path)["half"].dtype == "BF16"


def test_the_writer_refuses_bytes_that_were_not_promised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a has 48 bytes, not 24"):
        write_safetensors(tmp_path / "model.safetensors", [TensorSpec("a", "F16", (3, 4))], [ARRAYS["a"]])
