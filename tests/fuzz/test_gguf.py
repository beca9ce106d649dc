"""A GGUF file from anywhere is imported, or refused with a line that names it."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.models import ModelError
from chorus.models.gguf.convert import convert_gguf
from chorus.models.gguf.reader import read_gguf
from tests.fuzz.foreign import at_most
from tests.models.gguf_files import TinyModel, write_tiny_gguf

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SMALL = TinyModel(kind=GGMLQuantizationType.Q4_0, layers=1, hidden=64, inner=64, heads=2, kv_heads=1, head_dim=32)
LARGE_COUNTS = (0, 1, 2**16, 2**31, 2**32, 2**40, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, SMALL)
    return path.read_bytes()


@pytest.fixture(scope="module")
def header(tiny: bytes, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Where the tensors' bytes begin: what comes before is what is believed."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(tiny)
    return min(tensor.start for tensor in read_gguf(path).tensors.values())


def imported(folder: Path, content: bytes) -> None:
    """Imports it as `chorus models import` would; only the documented error may come out."""
    (folder / "file.gguf").write_bytes(content)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    with suppress(ModelError):
        convert_gguf(folder / "file.gguf", out)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def file_of(*fields: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(fields)


@shared_folder
@given(data=st.data())
def test_a_file_with_any_numbers_overwritten_is_imported_or_refused(
    tmp_path: Path, tiny: bytes, header: int, data: st.DataObject
) -> None:
    damaged = bytearray(tiny)
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.sampled_from(LARGE_COUNTS) | st.integers(0, 2**64 - 1))
        width = data.draw(st.sampled_from((1, 4, 8)))
        at = data.draw(st.integers(4, header - 8))
        damaged[at : at + width] = struct.pack("<Q", number)[:width]
    imported(tmp_path, bytes(damaged))


KEYS = (
    *("tokens", "token_type", "merges", "scores", "model", "pre", "bos_token_id", "eos_token_id", "eot_token_id"),
    *("unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"),
)
ARCHITECTURE_KEYS = (
    *(
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "expert_count",
    ),
    *("attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "rope.freq_base"),
    *("rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
)
keys = (
    st.sampled_from(KEYS).map("tokenizer.ggml.{}".format)
    | st.sampled_from(ARCHITECTURE_KEYS).map("llama.{}".format)
    | st.sampled_from(("tokenizer.chat_template", "general.alignment", "general.architecture", "general.name"))
)
numbers = st.integers(0, 2**32 - 1) | st.sampled_from((0, 1, 3, 4, 64, 2**31))
entries = (
    st.booleans()
    | numbers
    | st.floats(width=32)
    | st.sampled_from(("llama", "gpt2", "yarn", "linear", "default", "", "a b", "{{", "\0"))
    | st.lists(st.text(max_size=4), min_size=1, max_size=270)
    | st.lists(st.integers(0, 7), min_size=1, max_size=270)
    | st.lists(st.floats(width=32), min_size=1, max_size=270)
)


@shared_folder
@given(metadata=st.dictionaries(keys, entries, min_size=1, max_size=3), by_score=st.booleans())
def test_a_file_with_other_metadata_is_imported_or_refused(
    tmp_path: Path, metadata: dict[str, Any], by_score: bool
) -> None:
    """Some entries of a file that is right in all else, as something that nobody expects there."""
    scored = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-float(n) for n in range(264)]}
    write_tiny_gguf(tmp_path / "tiny.gguf", replace(SMALL, metadata=(scored if by_score else {}) | metadata))
    imported(tmp_path, (tmp_path / "tiny.gguf").read_bytes())


SEVENTEEN_MILLION = 17 * 2**20


def sparse(path: Path, head: bytes, size: int) -> Path:
    """A file that is as long as it says and takes no room on the disk."""
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(size)
    return path


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (GGUFValueType.UINT8, 2**33),
        (GGUFValueType.BOOL, 2**33),
        (GGUFValueType.UINT16, SEVENTEEN_MILLION),
        (GGUFValueType.FLOAT64, 2**30),
        (GGUFValueType.STRING, 2**28),
    ],
)
def test_a_list_as_long_as_the_file_is_refused_before_it_is_read(tmp_path: Path, kind: int, count: int) -> None:
    head = file_of(field("x", GGUFValueType.ARRAY, struct.pack("<IQ", kind, count)))
    file = sparse(tmp_path / "long.gguf", head, 2**34)
    with at_most(50), pytest.raises(ModelError, match=r"long\.gguf has a corrupt header"):
        read_gguf(file)


def test_a_name_as_long_as_the_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = sparse(tmp_path / "long.gguf", file_of(struct.pack("<Q", 2**33)), 2**34)
    with at_most(50), pytest.raises(ModelError, match=r"long\.gguf"):
        read_gguf(file)


def test_lists_within_lists_have_an_end(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", GGUFValueType.ARRAY, 1) * 100_000
    (tmp_path / "deep.gguf").write_bytes(file_of(field("x", GGUFValueType.ARRAY, nested)))
    with at_most(50), pytest.raises(ModelError, match=r"deep\.gguf"):
        read_gguf(tmp_path / "deep.gguf")


def test_a_token_as_long_as_a_book_is_refused(tmp_path: Path) -> None:
    """The merges of a vocabulary with scores are every way to cut each token: the square of its length."""
    tokens = [*SMALL.vocabulary[0][:-1], "a" * 1_000_000]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(n) for n in range(len(tokens))],
    }
    write_tiny_gguf(tmp_path / "tiny.gguf", replace(SMALL, metadata=metadata))
    with pytest.raises(ModelError, match="a token of 1000000 characters"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path)
