"""How arrays cross a wire: a small header, then their raw bytes. Any dtype, one copy, never pickle.

A frame may be packed for a slow link, without loss: the highest byte of each number (sign and exponent, or the zeros of
small integers) is compressed, the others are close to noise and stay as they are. Its header says so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import zstandard

from chorus.errors import ChorusError

DTYPES: tuple[mx.Dtype, ...] = (
    mx.float32,
    mx.float16,
    mx.bfloat16,
    mx.int32,
    mx.int64,
    mx.uint32,
    mx.uint8,
    mx.bool_,
    mx.int8,
    mx.int16,
    mx.uint16,
    mx.uint64,
)
MAX_ARRAYS = 255
MAX_DIMENSIONS = 16
LARGEST_DIMENSION = 2**31 - 1
"""What MLX can count in a shape."""
_HEAD = struct.Struct("<4sQBB")
_MAGIC = b"CHT1"
_PAYLOAD, _PACKED, _RECEIPT = 1, 2, 4
_FLAGS_AT = _HEAD.size - 1
_LEVEL = 1
LARGEST_UNPACKED = 1 << 30
"""As large as a message may be: a packed frame can promise more than anybody could send."""
MOST_UNPACKED = 16
"""Times its own size; what packs better is sent plain, so that a small frame never asks for much memory."""
_CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class BadFrame(ChorusError, ValueError):
    """Bytes that are not a frame of ours."""


@dataclass(frozen=True, slots=True)
class Shape:
    dtype: mx.Dtype
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = self.dtype.size
        for dim in self.dims:
            size *= dim
        return size


@dataclass(frozen=True, slots=True)
class Frame:
    step: int
    shapes: tuple[Shape, ...]
    payload: memoryview
    """All arrays one after the other; empty when they come another way (collectives)."""

    def arrays(self) -> list[mx.array]:
        found, at = [], 0
        for shape in self.shapes:
            found.append(_array(self.payload[at : at + shape.nbytes], shape))
            at += shape.nbytes
        return found


def encode(step: int, arrays: Sequence[mx.array], *, payload: bool = True, receipt: bool = False) -> bytes:
    """A whole frame, or with `payload=False` only the word that these shapes are coming.

    With `receipt` the receiver says when the frame has arrived.
    """
    if len(arrays) > MAX_ARRAYS:
        raise BadFrame(f"{len(arrays)} arrays in one frame, at most {MAX_ARRAYS} fit")
    head = _HEAD.pack(_MAGIC, step, len(arrays), _PAYLOAD * payload | _RECEIPT * receipt)
    shapes = b"".join(_encode_shape(array) for array in arrays)
    return b"".join([head, shapes, *(_raw(array) for array in arrays if payload)])


def decode(data: bytes) -> Frame:
    step, flags, shapes, at = _read_head(data)
    payload = memoryview(data)[at:]
    if flags & _PACKED:
        return Frame(step, shapes, _unpacked(payload, shapes, len(data)))
    expected = sum(shape.nbytes for shape in shapes) if flags & _PAYLOAD else 0
    if len(payload) != expected:
        raise BadFrame(f"a tensor frame has {len(payload)} bytes where its shapes need {expected}")
    return Frame(step, shapes, payload)


def wants_receipt(data: bytes) -> bool:
    return len(data) > _FLAGS_AT and bool(data[_FLAGS_AT] & _RECEIPT)


def pack(data: bytes) -> bytes:
    """The same frame for a slow link; as it was where packing gains nothing."""
    _, flags, shapes, at = _read_head(data)
    if flags & _PACKED or not flags & _PAYLOAD:
        return data
    low, high, payload = [], [], np.frombuffer(data, np.uint8, offset=at)
    for shape in shapes:
        planes = np.ascontiguousarray(payload[: shape.nbytes].reshape(-1, shape.dtype.size).T)
        low.append(planes[:-1].tobytes())
        high.append(planes[-1].tobytes())
        payload = payload[shape.nbytes :]
    # A checksum, because a damaged stream may still decompress, to other numbers.
    squeezed = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(high))
    head = data[:_FLAGS_AT] + bytes([flags | _PACKED]) + data[_FLAGS_AT + 1 : at]
    packed = b"".join([head, *low, squeezed])
    return packed if len(packed) < len(data) <= MOST_UNPACKED * len(packed) else data


def _unpacked(packed: memoryview, shapes: Sequence[Shape], whole_bytes: int) -> memoryview:
    """The plain payload. Its size comes from the shapes alone: what the compressed part claims must agree first."""
    counts = [shape.nbytes // shape.dtype.size for shape in shapes]
    low_bytes = sum(shape.nbytes for shape in shapes) - sum(counts)
    if low_bytes + sum(counts) > LARGEST_UNPACKED:
        raise BadFrame(f"a packed tensor frame of {low_bytes + sum(counts)} bytes, at most {LARGEST_UNPACKED} fit")
    if low_bytes + sum(counts) > MOST_UNPACKED * whole_bytes:
        raise BadFrame(f"a packed tensor frame of {whole_bytes} bytes that promises {low_bytes + sum(counts)}")
    if len(packed) <= low_bytes:
        raise BadFrame(f"a packed tensor frame has {len(packed)} bytes where its shapes need more than {low_bytes}")
    squeezed = packed[low_bytes:]
    try:
        claimed = zstandard.frame_content_size(squeezed)
        if claimed != sum(counts):
            raise BadFrame(f"a packed tensor frame unpacks to {claimed} bytes where its shapes need {sum(counts)}")
        high = np.frombuffer(zstandard.ZstdDecompressor().decompress(squeezed, allow_extra_data=False), np.uint8)
    except zstandard.ZstdError as error:
        raise BadFrame(f"a packed tensor frame is damaged: {error}") from error
    plain = np.empty(low_bytes + sum(counts), np.uint8)
    low, at, high_at, low_at = np.frombuffer(packed[:low_bytes], np.uint8), 0, 0, 0
    for shape, count in zip(shapes, counts, strict=True):
        size = shape.dtype.size
        numbers = plain[at : at + shape.nbytes].reshape(count, size)
        numbers[:, :-1] = low[low_at : low_at + count * (size - 1)].reshape(size - 1, count).T
        numbers[:, -1] = high[high_at : high_at + count]
        at, high_at, low_at = at + shape.nbytes, high_at + count, low_at + count * (size - 1)
    return memoryview(plain)


def _read_head(data: bytes) -> tuple[int, int, tuple[Shape, ...], int]:
    """Step, flags, shapes, and where the payload begins."""
    try:
        magic, step, count, flags = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise BadFrame("not a tensor frame")
        at, shapes = _HEAD.size, []
        for _ in range(count):
            code, rank = data[at], data[at + 1]
            dims = struct.unpack_from(f"<{rank}I", data, at + 2)
            if rank > MAX_DIMENSIONS or any(dim > LARGEST_DIMENSION for dim in dims):
                raise BadFrame(f"an array of {rank} dimensions up to {max(dims)}")
            shapes.append(Shape(DTYPES[code], dims))
            at += 2 + 4 * rank
    except (struct.error, IndexError) as error:
        raise BadFrame(f"a tensor frame is damaged: {error}") from error
    return step, flags, tuple(shapes), at


def _encode_shape(array: mx.array) -> bytes:
    return struct.pack(f"<BB{array.ndim}I", DTYPES.index(array.dtype), array.ndim, *array.shape)


def _raw(array: mx.array) -> memoryview:
    """The bytes of an evaluated array; numpy knows no bfloat16, so every dtype travels as integers of its size."""
    if not array.size:
        return memoryview(b"")
    carrier = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[array.dtype.size]
    flat = array.reshape(-1)
    plain = flat.astype(mx.uint8) if array.dtype == mx.bool_ else flat.view(carrier)
    return memoryview(np.array(plain, copy=False)).cast("B")


def _array(data: memoryview, shape: Shape) -> mx.array:
    if not len(data):
        return mx.zeros(shape.dims, shape.dtype)
    plain = mx.array(np.frombuffer(data, dtype=_CARRIERS[shape.dtype.size]))
    typed = plain.astype(mx.bool_) if shape.dtype == mx.bool_ else plain.view(shape.dtype)
    return typed.reshape(shape.dims)
