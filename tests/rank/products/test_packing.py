"""What MLX has quantized is the same numbers in the kernels' form."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from chorus.rank.products.packing import pack, unpack

ROWS, COLUMNS = 24, 256
HELD = {1: 2, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}


def quantized(bits: int, block: int, mode: str = "affine") -> tuple[list[np.ndarray], np.ndarray]:
    weight = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(bits * block))
    parts = mx.quantize(weight, group_size=block, bits=bits, mode=mode)
    whole = mx.dequantize(*parts, group_size=block, bits=bits, mode=mode, dtype=mx.float32)
    return [np.array(part) for part in parts], np.array(whole)


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_affine_weights_of_every_width_are_the_same_numbers(bits: int, block: int) -> None:
    (weight, scales, biases), expected = quantized(bits, block)
    matrix = pack(weight, scales, biases, bits=bits, block=block, mode="affine")
    assert matrix is not None
    assert (matrix.rows, matrix.columns, matrix.bits) == (ROWS, COLUMNS, HELD[bits])
    # A scale times the middle is added and taken away again.
    np.testing.assert_allclose(unpack(matrix), expected, rtol=0, atol=float(np.abs(scales).max()) * 2**bits * 1e-6)


@pytest.mark.parametrize("bits", [1, 3, 5, 6])
def test_codes_of_other_widths_lie_around_the_middle(bits: int) -> None:
    (weight, scales, biases), _ = quantized(bits, 64)
    matrix = pack(weight, scales, biases, bits=bits, block=64, mode="affine")
    assert matrix is not None
    integers = unpack(replace(matrix, scales=np.ones_like(matrix.scales), shift=None))
    assert (integers.min(), integers.max()) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize(("mode", "block"), [("mxfp4", 32), ("nvfp4", 16)])
def test_small_floats_are_the_same_numbers(mode: str, block: int) -> None:
    (weight, scales), expected = quantized(4, block, mode)
    matrix = pack(weight, scales, None, bits=4, block=block, mode=mode)
    assert matrix is not None
    assert matrix.shift is None
    assert (unpack(matrix) == expected).all()


def test_floats_of_8_bits_are_not_held() -> None:
    (weight, scales), _ = quantized(8, 32, "mxfp8")
    assert pack(weight, scales, None, bits=8, block=32, mode="mxfp8") is None


def test_every_float_of_8_bits_is_read_as_mlx_reads_it() -> None:
    from chorus.rank.products.packing import _e4m3

    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)  # those are no numbers
    assert (_e4m3(codes) == np.array(mx.from_fp8(mx.array(codes), dtype=mx.float32))).all()
