"""A segment as a file: safetensors, whose metadata say what it is, with a checksum over all of it.

The checksum is there to find damage (a write that was cut off, a bad disk), not malice: the folder is private, and who
can write there could write anything. So it is the quick one, which costs less than reading the file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from chorus.errors import ChorusError
from chorus.rank.cache.store import Arrays, Segment

VERSION = "1"
HEADER_BYTES = 16 << 20
"""No header is longer: it takes some 100 bytes an array."""

LENGTH_BYTES = 8
_OPENING = b'{"__metadata__":{"crc32":"'
_NO_CHECKSUM = b"00000000"
_TYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "I64": mx.int64,
    "I32": mx.int32,
    "U32": mx.uint32,
    "U8": mx.uint8,
    "BOOL": mx.bool_,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class BrokenFile(ChorusError, ValueError):
    """This file is not the segment that it should be."""


@dataclass(frozen=True)
class Image:
    """The bytes of a file before they are written. The data are views of the segment's own arrays."""

    header: bytes
    data: list[memoryview]

    @property
    def nbytes(self) -> int:
        return LENGTH_BYTES + len(self.header) + sum(view.nbytes for view in self.data)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """What to write, in order. Calls nothing of MLX: any thread may do it."""
        checksum = b"%08x" % _checksum(self.header, self.data)
        yield len(self.header).to_bytes(LENGTH_BYTES, "little")
        yield self.header.replace(_OPENING + _NO_CHECKSUM, _OPENING + checksum, 1)
        yield from self.data


def image(segment: Segment, fingerprint: str, key: str) -> Image:
    """Computes what is not computed yet, so it belongs to the thread that owns the arrays."""
    kept = {name: array for name, array in _named(segment) if array is not None}
    views = {name: array.view(mx.uint8) for name, array in kept.items() if array.nbytes}
    mx.eval(views)
    counts = [_counts(segment.slices), None if segment.states is None else _counts(segment.states)]
    metadata = {
        "crc32": _NO_CHECKSUM.decode(),
        "version": VERSION,
        "fingerprint": fingerprint,
        "key": key,
        "tokens": json.dumps([segment.start, segment.stop]),
        "arrays": json.dumps(counts),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in kept.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return Image(text + b" " * (-len(text) % LENGTH_BYTES), [_bytes_of(view) for view in views.values()])


def label(head: bytes, file_bytes: int) -> tuple[dict[str, Any], int]:
    """The header of a file that begins with `head`, and where its data begin. Its checksum is not looked at."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if not len(_OPENING) <= length <= HEADER_BYTES or start > file_bytes:
        raise BrokenFile("it has no header")
    if len(head) < start:
        raise BrokenFile("its header is cut off")
    try:
        header = json.loads(head[LENGTH_BYTES:start])
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise BrokenFile("its header cannot be read") from None
    if start + end != file_bytes:
        raise BrokenFile(f"it has {file_bytes:,} bytes instead of {start + end:,}")
    return header, start


def check_label(header: Mapping[str, Any], fingerprint: str, key: str) -> None:
    metadata = header.get("__metadata__")
    wanted = {"version": VERSION, "fingerprint": fingerprint, "key": key}
    if not isinstance(metadata, dict) or any(metadata.get(name) != value for name, value in wanted.items()):
        raise BrokenFile("it was written for another model, another division of it, or by another version")


def read(content: memoryview, fingerprint: str, key: str) -> Segment:
    """The segment that a file holds; its arrays are copies."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    header, start = label(bytes(content[: LENGTH_BYTES + min(length, HEADER_BYTES)]), content.nbytes)
    text = bytes(content[LENGTH_BYTES:start])
    digits = slice(len(_OPENING), len(_OPENING) + len(_NO_CHECKSUM))
    zeroed = text[: digits.start] + _NO_CHECKSUM + text[digits.stop :]
    if not text.startswith(_OPENING) or text[digits] != b"%08x" % _checksum(zeroed, [content[start:]]):
        raise BrokenFile("its checksum is wrong")
    check_label(header, fingerprint, key)
    metadata, data = header.pop("__metadata__"), content[start:]
    try:
        arrays = {name: _array(entry, data) for name, entry in header.items()}
        first, last = json.loads(metadata["tokens"])
        slices, states = json.loads(metadata["arrays"])
        segment = Segment(
            first,
            last,
            _gathered("slices", slices, arrays),
            None if states is None else _gathered("states", states, arrays),
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        raise BrokenFile("its arrays are not what its header says") from None
    mx.eval(segment.slices, segment.states)
    return segment


def _bytes_of(array: Any) -> memoryview:
    return memoryview(array).cast("B")


def _checksum(header: bytes, data: list[memoryview]) -> int:
    checksum = zlib.crc32(header)
    for view in data:
        checksum = zlib.crc32(view, checksum)
    return checksum


def _named(segment: Segment) -> Iterator[tuple[str, mx.array | None]]:
    for kind, leaves in (("slices", segment.slices), ("states", segment.states or {})):
        for place, arrays in leaves.items():
            yield from ((f"{kind}.{place}.{number}", array) for number, array in enumerate(arrays))


def _counts(leaves: dict[int, Arrays]) -> dict[int, int]:
    """How many arrays each leaf has: those that are None leave no other trace."""
    return {place: len(arrays) for place, arrays in leaves.items()}


def _gathered(kind: str, counts: Mapping[str, int], arrays: Mapping[str, mx.array]) -> dict[int, Arrays]:
    return {
        int(place): [arrays.get(f"{kind}.{place}.{number}") for number in range(number_of)]
        for place, number_of in counts.items()
    }


def _array(entry: Mapping[str, Any], data: memoryview) -> mx.array:
    dtype, shape, (start, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not 0 <= start <= end <= data.nbytes or np.prod(shape, dtype=np.int64) * dtype.size != end - start:
        raise ValueError("its place does not fit its shape")
    if start == end:
        return mx.zeros(shape, dtype)
    return mx.array(np.frombuffer(data[start:end], np.uint8)).view(dtype).reshape(shape)
