"""Quantized weights of MLX in the form that the kernels take: small integers, a scale and a shift for each block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_KERNEL_BITS = (2, 4, 8)
# Twice the values of a 4-bit float (e2m1), by its code: whole numbers, which 8 bits hold.
_DOUBLED_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)
# The largest number of nvfp4 itself: a tensor's own scale is the largest number that the tensor has.
_LARGEST_NVFP4 = np.float32(448 * 6)


@dataclass(frozen=True)
class Packed:
    """A matrix: row r, column c is scales[r, b] * (code - 2 ** (bits - 1)) + shift[r, b], where b is the block of c."""

    bits: int
    block: int
    codes: Bytes
    """Rows, blocks, bytes of a block; the first column in the lowest bits."""
    scales: Floats
    """Rows, blocks."""
    shift: Floats | None
    """Likewise; None: none is needed."""

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        return self.codes.shape[1] * self.block

    def with_empty_rows(self, before: int, after: int) -> Packed:
        """The same with rows of zeros at its ends."""
        rows = (before, after), (0, 0)
        shift = None if self.shift is None else np.pad(self.shift, rows)
        return replace(self, codes=np.pad(self.codes, (*rows, (0, 0))), scales=np.pad(self.scales, rows), shift=shift)

    @property
    def nbytes(self) -> int:
        """What a kernel takes to hold it: scales as they came and as it lays them out, and a sum for each block."""
        return self.codes.nbytes + 3 * self.scales.nbytes + (self.shift.nbytes if self.shift is not None else 0)


def pack(
    weight: NDArray[np.uint32],
    scales: Floats | Bytes,
    biases: Floats | None,
    *,
    bits: int,
    block: int,
    mode: str,
    tensor_scale: Floats | None = None,
) -> Packed | None:
    """A matrix as MLX keeps it, exactly; None where integers and a scale for each block cannot hold it.

    Activations are rounded to integers too, and a code's distance from the middle multiplies what that loses. So
    values of other widths are laid around the middle of the next width, not at its beginning.
    """
    rows, blocks = scales.shape
    if mode == "affine":
        assert biases is not None
        held = held_bits(bits, mode)
        codes = weight.view(np.uint8) if held == bits else _stream(_values(weight, bits) - 2 ** (bits - 1), held)
        own = scales.astype(np.float32)
        shift = biases.astype(np.float32) + own * np.float32(2 ** (bits - 1))
        return Packed(held, block, codes.reshape(rows, blocks, -1), own, shift)
    if mode in ("mxfp4", "nvfp4"):
        codes = _stream(_DOUBLED_FP4[_values(weight, 4)], 8)
        powers = _powers_of_two(scales) if mode == "mxfp4" else _e4m3(scales)
        if tensor_scale is not None:
            powers = powers * (tensor_scale / _LARGEST_NVFP4)
        return Packed(8, block, codes.reshape(rows, blocks, -1), powers * np.float32(0.5), None)
    return None


def held_bits(bits: int, mode: str) -> int:
    """The width in which the kernels hold a matrix."""
    return 8 if mode != "affine" else next(width for width in _KERNEL_BITS if width >= bits)


def unpack(matrix: Packed) -> Floats:
    """The numbers themselves, for comparing and for looking up rows."""
    codes = matrix.codes.reshape(matrix.rows, -1)
    values = _values(codes, matrix.bits) if matrix.bits != 8 else codes.astype(np.int16)
    blocked = (values - 2 ** (matrix.bits - 1)).reshape(matrix.rows, -1, matrix.block)
    numbers = blocked.astype(np.float32) * matrix.scales[..., None]
    if matrix.shift is not None:
        numbers += matrix.shift[..., None]
    return numbers.reshape(matrix.rows, -1)


def _values(packed: NDArray[np.uint32] | Bytes, bits: int) -> NDArray[np.int16]:
    """The integers of a stream of so many bits each, row by row, the first in the lowest bits."""
    stream = np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")
    return stream.reshape(len(packed), -1, bits) @ (1 << np.arange(bits, dtype=np.int16))


def _stream(signed: NDArray[np.int16], bits: int) -> Bytes:
    """The other way round, of integers around zero."""
    codes = (signed + 2 ** (bits - 1)).astype(np.uint8).reshape(len(signed), -1, 8 // bits)
    return np.bitwise_or.reduce(codes << (bits * np.arange(8 // bits, dtype=np.uint8)), axis=2)


def _powers_of_two(exponents: Bytes | Floats) -> Floats:
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)


def _e4m3(codes: Bytes | Floats) -> Floats:
    """Floats of 8 bits: a sign, four bits of exponent, three of fraction."""
    whole = codes.astype(np.int32)
    exponent, fraction = (whole >> 3) & 15, whole & 7
    size = np.where(exponent == 0, np.ldexp(fraction / 8, -6), np.ldexp(1 + fraction / 8, exponent - 7))
    return np.where(whole & 128, -size, size).astype(np.float32)
