"""How arrays cross a wire: a small header, then their raw bytes. Any dtype, one copy, never pickle."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

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
_HEAD = struct.Struct("<4sQBB")
_MAGIC = b"CHT1"
_CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class BadFrame(ValueError):
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


def encode(step: int, arrays: Sequence[mx.array], *, payload: bool = True) -> bytes:
    """A whole frame, or with `payload=False` only the word that these shapes are coming."""
    if len(arrays) > MAX_ARRAYS:
        raise BadFrame(f"{len(arrays)} arrays in one frame, at most {MAX_ARRAYS} fit")
    head = _HEAD.pack(_MAGIC, step, len(arrays), payload)
    shapes = b"".join(_encode_shape(array) for array in arrays)
    return b"".join([head, shapes, *(_raw(array) for array in arrays if payload)])


def decode(data: bytes) -> Frame:
    try:
        magic, step, count, has_payload = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise BadFrame("not a tensor frame")
        at, shapes = _HEAD.size, []
        for _ in range(count):
            code, rank = data[at], data[at + 1]
            shapes.append(Shape(DTYPES[code], struct.unpack_from(f"<{rank}I", data, at + 2)))
            at += 2 + 4 * rank
    except (struct.error, IndexError) as error:
        raise BadFrame(f"a tensor frame is damaged: {error}") from error
    payload = memoryview(data)[at:]
    expected = sum(shape.nbytes for shape in shapes) if has_payload else 0
    if len(payload) != expected:
        raise BadFrame(f"a tensor frame has {len(payload)} bytes where its shapes need {expected}")
    return Frame(step, tuple(shapes), payload)


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
