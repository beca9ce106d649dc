from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.transport.frames import DTYPES, BadFrame, decode, encode

ARRAYS = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), min_size=0, max_size=4))


def make(dtype: mx.Dtype, dims: list[int], seed: int) -> mx.array:
    noise = mx.random.normal(dims or (), key=mx.random.key(seed)) * 50
    return (
        (noise > 0)
        if dtype == mx.bool_
        else noise.astype(mx.int32).astype(dtype)
        if dtype.size == 1
        else noise.astype(dtype)
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(ARRAYS, max_size=5), st.integers(0, 2**63))
def test_any_arrays_arrive_as_they_were_sent(kinds: list[tuple[mx.Dtype, list[int]]], step: int) -> None:
    arrays = [make(dtype, dims, i) for i, (dtype, dims) in enumerate(kinds)]
    frame = decode(encode(step, arrays))
    assert frame.step == step
    for sent, received in zip(arrays, frame.arrays(), strict=True):
        assert sent.dtype == received.dtype
        assert sent.shape == received.shape
        assert bool(mx.array_equal(sent, received, equal_nan=True))


def test_shapes_can_be_announced_before_anything_is_computed() -> None:
    lazy = mx.zeros((2, 3, 4), mx.bfloat16) + 1
    frame = decode(encode(7, [lazy], payload=False))
    assert [(shape.dtype, shape.dims) for shape in frame.shapes] == [(mx.bfloat16, (2, 3, 4))]
    assert len(frame.payload) == 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_of_strangers_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(data)


@given(st.integers(1, 40))
def test_a_cut_frame_is_refused(missing: int) -> None:
    whole = encode(1, [mx.arange(10)])
    with pytest.raises(BadFrame):
        decode(whole[:-missing])
