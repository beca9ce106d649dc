"""Products of every kind against float32 of the same numbers, and of a row alone against the same row among others."""

from __future__ import annotations

import numpy as np
import pytest

from chorus.rank.products.kernels import Kernel, Matrix, linears, mlp
from chorus.rank.products.packing import Floats, Packed, unpack
from tests.rank.products.rounding import KINDS, explained, inputs, quantized

ROWS, COLUMNS = 40, 256
# Alone, in batches of several sizes, and in a prompt's chunk: kernels differ by how many rows there are.
BATCHES = (2, 3, 4, 8, 17, 64)
BIT_EQUAL_UP_TO = 32
"""Numbers in a group. A kernel that takes larger ones adds up in another order when it has several rows."""
OTHER_ORDER = 5e-6
"""Of the largest product of a row. Seen: 3e-6 for 5 bits by 128, 1e-6 and less for all others."""


def product(matrix: Packed, x: Floats) -> Floats:
    (made,) = linears([Matrix(matrix)])(x)
    return made


@pytest.mark.parametrize(("bits", "block", "mode"), KINDS)
def test_every_kind_is_as_near_float32_as_rounded_inputs_explain(bits: int, block: int, mode: str) -> None:
    matrix, x = quantized(bits, block, mode, ROWS, COLUMNS), inputs(9, COLUMNS)
    off = np.abs(product(matrix, x) - x @ unpack(matrix).T)
    assert (off <= explained(matrix, x)).all()


def test_a_tensors_own_scale_is_a_part_of_its_numbers() -> None:
    matrix, x = quantized(4, 16, "nvfp4", ROWS, COLUMNS, tensor_scale=True), inputs(5, COLUMNS)
    assert (np.abs(product(matrix, x) - x @ unpack(matrix).T) <= explained(matrix, x)).all()


@pytest.mark.parametrize(("bits", "block", "mode"), KINDS)
def test_a_row_alone_is_the_row_of_a_batch(bits: int, block: int, mode: str) -> None:
    kernel, x = linears([Matrix(quantized(bits, block, mode, ROWS, COLUMNS))]), inputs(max(BATCHES), COLUMNS)
    alone = np.concatenate([kernel(x[row : row + 1])[0] for row in range(len(x))])
    largest = np.abs(alone).max(axis=-1, keepdims=True)
    for count in BATCHES:
        (together,) = kernel(x[:count])
        if block <= BIT_EQUAL_UP_TO:
            assert np.array_equal(together, alone[:count])
        assert (np.abs(together - alone[:count]) <= OTHER_ORDER * largest[:count]).all()


def test_several_matrices_of_different_kinds_multiply_one_input() -> None:
    random = np.random.default_rng(1)
    x, held = inputs(3, COLUMNS), [quantized(*kind, 8 + 3 * kind[0], COLUMNS) for kind in KINDS[::4]]
    matrices = [Matrix(one, random.standard_normal(one.rows).astype(np.float32)) for one in held]
    for made, matrix in zip(linears(matrices)(x), matrices, strict=True):
        assert matrix.bias is not None
        off = np.abs(made - (x @ unpack(matrix.weights).T + matrix.bias))
        assert (off <= explained(matrix.weights, x) + 1e-6).all()


def test_only_the_asked_outputs_are_given() -> None:
    x, held = inputs(2, COLUMNS), [quantized(4, 32, "affine", rows, COLUMNS) for rows in (8, 16, 24)]
    kernel = linears([Matrix(one) for one in held])
    whole = kernel(x)
    last, first = kernel.some(x, [2, 0])
    assert np.array_equal(last, whole[2])
    assert np.array_equal(first, whole[0])


def test_rows_of_zeros_at_the_ends_change_nothing_else() -> None:
    x, own = inputs(3, COLUMNS), quantized(4, 64, "affine", ROWS, COLUMNS)
    bias = np.arange(ROWS, dtype=np.float32)
    matrix = Matrix(own, bias)
    (plain,), (wide,) = linears([matrix])(x), linears([matrix.with_empty_rows(3, 7)])(x)
    assert np.array_equal(wide[:, 3:-7], plain)
    assert not wide[:, :3].any()
    assert not wide[:, -7:].any()
    assert matrix.with_empty_rows(0, 0) is matrix


def test_no_rows_give_no_rows() -> None:
    assert product(quantized(4, 32, "affine", ROWS, COLUMNS), np.zeros((0, COLUMNS), np.float32)).shape == (0, ROWS)


def test_an_mlp_without_anything_between_is_two_products() -> None:
    inner, last = quantized(4, 32, "affine", 64, COLUMNS), quantized(8, 32, "affine", COLUMNS, 64)
    kernel: Kernel = mlp(lambda graph, parts: parts[0], [Matrix(inner)], Matrix(last))
    x = inputs(3, COLUMNS)
    assert np.array_equal(kernel(x)[0], product(last, product(inner, x)))
