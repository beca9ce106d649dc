"""Reads a GGUF file's metadata and finds its tensors, trusting no number in it.

The gguf package's own reader makes an array for each string, which takes seconds for a large vocabulary, and answers
a truncated file with whatever numpy happens to say; this one names the file and the tensor.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from chorus.models.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_LONGEST_HEADER = 128 << 20
"""Vocabularies of today take some ten megabytes."""
_LONGEST_NAME = 256
_LONGEST_LIST = 1 << 24
"""A number of one byte in the file takes thirty as Python's."""

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor; `shape` is in numpy's order, the reverse of the file's."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: what it says of itself, and where its tensors lie."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    def require(self, key: str) -> Any:
        if key not in self.metadata:
            raise ModelError(f"{self.path.name} lacks the metadata {key}; use a file made by a current converter.")
        return self.metadata[key]

    def rows(self, tensor: GgufTensor) -> np.ndarray:
        """The tensor's raw bytes, one line for each row of the last dimension; read from disk only where touched."""
        count = math.prod(tensor.shape[:-1])
        data = np.memmap(self.path, np.uint8, "r", tensor.start, (tensor.nbytes,))
        return data.reshape(count, tensor.nbytes // count)


class _Truncated(Exception):
    pass


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise _Truncated
        if end > _LONGEST_HEADER:
            raise ValueError(f"it goes on after byte {_LONGEST_HEADER}")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        # Merges and tokens of a few published files cut characters in half; they are byte-level anyway.
        return self.take(self.number("<Q")).decode("utf-8", errors="replace")

    def name(self) -> str:
        """The name of an entry or a tensor; errors show it."""
        name = self.text()
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError("a name that is none")
        return name

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            item = GGUFValueType(self.number("<I"))
            return self.array(item, self.number("<Q"))
        return self.array(kind, 1)[0]

    def array(self, kind: GGUFValueType, count: int) -> list[Any]:
        if count > _LONGEST_LIST:
            raise ValueError(f"a list of {count} values")
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return [self.value(kind) for _ in range(count)]


def read_gguf(path: Path) -> GgufFile:
    """Metadata and tensor positions of a GGUF file, every tensor checked to lie inside the file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"{path} is not a GGUF file; give a file that a GGUF converter wrote.")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            cursor.position = len(_MAGIC)
            try:
                metadata, tensors = _parse(path, cursor)
            except _Truncated:
                raise ModelError(
                    f"{path} is truncated: its header goes on after byte {size}; download it again."
                ) from None
            except (ValueError, KeyError, RecursionError) as error:
                raise ModelError(f"{path} has a corrupt header ({error}); download it again.") from error
    for tensor in tensors.values():
        if tensor.start + tensor.nbytes > size:
            raise ModelError(
                f"{path} is truncated: tensor {tensor.name} ends at byte {tensor.start + tensor.nbytes} of {size}; "
                "download it again."
            )
    return GgufFile(path, metadata, tensors)


def _parse(path: Path, cursor: _Cursor) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    version = cursor.number("<I")
    if version not in _VERSIONS:
        raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 (little-endian) can be read.")
    tensor_count, field_count = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(field_count):
        key = cursor.name()
        if key in metadata:
            raise ValueError(f"{key} appears twice")
        metadata[key] = cursor.value(GGUFValueType(cursor.number("<I")))
    found = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment is {alignment}")
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, kind, shape, offset in found:
        if name in tensors:
            raise ValueError(f"tensor {name} appears twice")
        tensors[name] = GgufTensor(name, kind, shape, base + offset, _nbytes(name, kind, shape))
    return metadata, tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.name()
    dimensions = cursor.number("<I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(reversed([cursor.number("<Q") for _ in range(dimensions)]))
    return name, GGMLQuantizationType(cursor.number("<I")), shape, cursor.number("<Q")


def _nbytes(name: str, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block:
        raise ValueError(f"tensor {name} of shape {list(shape)} cannot be {kind.name}, whose blocks have {block}")
    return math.prod(shape) // block * block_bytes
