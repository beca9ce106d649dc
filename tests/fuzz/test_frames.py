"""Tensor frames from the wire: what they claim is checked against what came before any memory is taken for it."""

from __future__ import annotations

import struct

import mlx.core as mx
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chorus.transport import frames
from chorus.transport.frames import DTYPES, BadFrame, decode, encode, pack
from tests.fuzz.foreign import at_most

HEAD = struct.Struct("<4sQBB")
PAYLOAD, PACKED = 1, 2
dims = st.lists(st.integers(0, 3) | st.sampled_from([2**16, 2**31 - 1, 2**31, 2**32 - 1]), max_size=20)
shapes = st.lists(st.tuples(st.integers(0, len(DTYPES) + 1), dims), max_size=3)


def frame(flags: int, claimed: list[tuple[int, list[int]]], payload: bytes, count: int | None = None) -> bytes:
    head = HEAD.pack(b"CHT1", 1, len(claimed) if count is None else count, flags)
    return head + b"".join(struct.pack(f"<BB{len(dims)}I", code, len(dims), *dims) for code, dims in claimed) + payload


def read(data: bytes) -> None:
    """All arrays of a frame, or the documented error."""
    try:
        found = decode(data)
        if len(found.payload) or not found.shapes:
            for array in found.arrays():
                mx.eval(array)
    except BadFrame:
        return


@given(flags=st.integers(0, 255), claimed=shapes, payload=st.binary(max_size=64), count=st.none() | st.integers(0, 255))
def test_a_frame_of_any_shapes_is_read_or_refused(
    flags: int, claimed: list[tuple[int, list[int]]], payload: bytes, count: int | None
) -> None:
    read(frame(flags, claimed, payload, count))


@given(claimed=shapes, high=st.binary(max_size=64), low=st.binary(max_size=64))
def test_a_packed_frame_of_any_shapes_is_read_or_refused(
    claimed: list[tuple[int, list[int]]], high: bytes, low: bytes
) -> None:
    read(frame(PAYLOAD | PACKED, claimed, low + zstandard.compress(high)))


@given(dtype=st.sampled_from(DTYPES), size=st.integers(1, 400), at=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_frame_is_read_or_refused(dtype: mx.Dtype, size: int, at: int, value: int) -> None:
    whole = bytearray(pack(encode(1, [mx.zeros((size,), dtype)])))
    whole[at % len(whole)] = value
    read(bytes(whole))


@pytest.mark.parametrize("code", [DTYPES.index(mx.uint8), DTYPES.index(mx.bfloat16)])
def test_a_small_frame_never_asks_for_much_memory(code: int) -> None:
    """A million zeros are a hundred packed bytes."""
    number = 100_000_000
    bomb = frame(PAYLOAD | PACKED, [(code, [number])], zstandard.compress(bytes(number)))
    with at_most(10), pytest.raises(BadFrame):
        decode(bomb)


def test_a_frame_that_packs_too_well_is_sent_plain() -> None:
    plain = encode(1, [mx.zeros((200_000,), mx.uint8)])
    assert pack(plain) == plain
    assert np.array_equal(decode(pack(plain)).payload, np.zeros(200_000, np.uint8))


def test_the_bounds_are_above_what_is_sent() -> None:
    sent = encode(1, [mx.zeros((2, 3, 4, 5), mx.bfloat16), mx.zeros((0, 7)), mx.array(1.0)])
    assert [shape.dims for shape in decode(sent).shapes] == [(2, 3, 4, 5), (0, 7), ()]
    assert frames.MAX_DIMENSIONS > 4
