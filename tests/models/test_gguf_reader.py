from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.models import ModelError
from chorus.models.gguf.convert import convert_gguf
from chorus.models.gguf.reader import read_gguf
from tests.models.gguf_files import TinyModel, write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, TinyModel(kind=Type.Q4_0, layers=1, hidden=64, inner=64, heads=2, kv_heads=1, head_dim=32))
    return path


def test_it_reads_what_the_gguf_package_reads(tiny: Path) -> None:
    ours, theirs = read_gguf(tiny), GGUFReader(tiny)
    for key, value in ours.metadata.items():
        assert value == theirs.fields[key].contents(), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.start, mine.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(ours.rows(mine).ravel(), tensor.data.view(np.uint8).ravel())


def test_a_file_without_its_end_names_the_tensor(tiny: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"short.gguf is truncated: tensor blk.0.ffn_down.weight ends at byte"):
        read_gguf(short)


def test_something_else_is_not_taken_for_gguf(tmp_path: Path) -> None:
    other = tmp_path / "page.gguf"
    other.write_text("<html>not found</html>")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(other)
    other.write_bytes(b"")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(other)
    other.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(64))
    with pytest.raises(ModelError, match="version 1"):
        read_gguf(other)


@given(keep=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_always_refused(tiny: Path, tmp_path: Path, keep: float) -> None:
    data = tiny.read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ModelError):
        read_gguf(short)


@given(at=st.integers(0, 6000), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_header_is_refused_or_harmless(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    data = bytearray(tiny.read_bytes())
    data[at] = value
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "damaged.gguf").write_bytes(data)
    (folder / "out").mkdir()
    with suppress(ModelError):
        convert_gguf(folder / "damaged.gguf", folder / "out")
