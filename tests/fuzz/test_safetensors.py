"""The header of a weights file, and the index of a folder, are believed only as far as the files bear them out."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.models import ModelError
from chorus.models.tensors import INDEX_FILE, read_header, read_json, tensor_index
from tests.fuzz.foreign import at_most, texts, values

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NAME = "model.safetensors"
sizes = st.integers(-2, 4) | values
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F4", "U8", "BOOL", "X"]) | values,
        "shape": st.lists(sizes, max_size=4) | values,
        "data_offsets": st.lists(st.integers(-8, 40) | values, min_size=2, max_size=2) | values,
    },
)
headers = st.dictionaries(texts | st.just("__metadata__"), entries | values, max_size=3) | values


def weights(header: bytes, data: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + data


def checked(file: Path) -> None:
    """What is read can be relied upon: every tensor within the file, of the size that its shape says."""
    with suppress(ModelError):
        for info in read_header(file).values():
            assert all(type(size) is int and size >= 0 for size in (*info.shape, info.start, info.end))
            assert 8 <= info.start <= info.end <= file.stat().st_size


@shared_folder
@given(header=headers, data=st.binary(max_size=40))
def test_a_header_of_any_values_is_read_or_refused(tmp_path: Path, header: Any, data: bytes) -> None:
    file = tmp_path / NAME
    file.write_bytes(weights(json.dumps(header).encode(), data))
    checked(file)


@shared_folder
@given(content=st.binary(max_size=80), claimed=st.none() | st.integers(0, 2**64 - 1))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, claimed: int | None) -> None:
    file = tmp_path / NAME
    file.write_bytes(weights(content, b"", claimed))
    checked(file)


@shared_folder
@given(
    index=st.fixed_dictionaries({"weight_map": values | st.dictionaries(texts, texts | st.just(NAME), max_size=3)})
    | values
)
def test_an_index_of_any_values_is_read_or_refused(tmp_path: Path, index: Any) -> None:
    header = {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / NAME).write_bytes(weights(json.dumps(header).encode(), b"ab"))
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with suppress(ModelError):
        tensor_index(tmp_path)


HOSTILE = {
    "nested": b"[" * 200_000,
    "dimensions": json.dumps({"a": {"dtype": "U8", "shape": [2**62] * 500_000, "data_offsets": [0, 0]}}).encode(),
    "no number": b'{"a": {"dtype": "U8", "shape": [1e400], "data_offsets": [0, 0]}}',
    "no whole number": b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0.0, 2.0]}}',
    "twice negative": b'{"a": {"dtype": "U8", "shape": [-1, -2], "data_offsets": [0, 2]}}',
    "digits": b'{"a": {"dtype": "U8", "shape": [' + b"9" * 100_000 + b'], "data_offsets": [0, 2]}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_about_sizes_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / NAME
    file.write_bytes(weights(HOSTILE[name], b"ab"))
    with at_most(100), pytest.raises(ModelError, match="corrupt header") as refused:
        read_header(file)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800", "a\0b", "..", ""])
def test_an_index_with_names_that_no_file_has_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError) as refused:
        tensor_index(tmp_path)
    assert str(refused.value).isprintable()


def test_json_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 200_000)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_json(tmp_path / "config.json")
