"""Weights of MLX in the form that the kernels take: plain ones as they are, quantized ones as small integers, with a
scale and a shift for each block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorus.platform.cpu.products import SCALE_COPIES, held_bits

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_AT_ONCE = 1 << 20
"""Words of packed numbers that are changed at a time."""
# Twice the values of a 4-bit float (e2m1), by its code: whole numbers, which 8 bits hold.
_DOUBLED_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
_DOUBLED_PAIRS = ((_DOUBLED_FP4 + 128) + (_DOUBLED_FP4[:, None] + 128) * 256).reshape(-1).astype(np.uint16)
"""Both numbers of a byte, as codes of 8 bits."""
# The largest number of nvfp4 itself: a tensor's own scale is the largest number that the tensor has.
_LARGEST_NVFP4 = np.float32(448 * 6)


@dataclass(frozen=True)
class Plain:
    """A matrix as it is: a kernel lays it out for its products once, and only that copy stays."""

    numbers: Floats
    """Rows, columns."""

    @property
    def rows(self) -> int:
        return self.numbers.shape[0]

    @property
    def columns(self) -> int:
        return self.numbers.shape[1]

    def with_empty_rows(self, before: int, after: int) -> Plain:
        """The same with rows of zeros at its ends."""
        return Plain(np.pad(self.numbers, ((before, after), (0, 0))))

    @property
    def nbytes(self) -> int:
        """What a kernel takes to hold it."""
        return self.numbers.nbytes


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
        """What a kernel takes to hold it."""
        return (
            self.codes.nbytes + SCALE_COPIES * self.scales.nbytes + (self.shift.nbytes if self.shift is not None else 0)
        )


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
        assert held is not None
        codes = weight.view(np.uint8) if held == bits else _by_rows(weight, lambda some: _widened(some, bits, held))
        own = scales.astype(np.float32)
        shift = biases.astype(np.float32) + own * np.float32(2 ** (bits - 1))
        return Packed(held, block, codes.reshape(rows, blocks, -1), own, shift)
    if mode in ("mxfp4", "nvfp4"):
        codes = _by_rows(weight, lambda some: _DOUBLED_PAIRS[some.view(np.uint8)].view(np.uint8))
        powers = _powers_of_two(scales) if mode == "mxfp4" else _e4m3(scales)
        if tensor_scale is not None:
            powers = powers * (tensor_scale / _LARGEST_NVFP4)
        return Packed(8, block, codes.reshape(rows, blocks, -1), powers * np.float32(0.5), None)
    return None


def unpack(matrix: Packed) -> Floats:
    """The numbers themselves, for comparing."""
    codes = matrix.codes.reshape(matrix.rows, -1)
    values = codes if matrix.bits == 8 else _spread(codes, matrix.bits, 8).view(np.uint8)
    blocked = (values.astype(np.int16) - 2 ** (matrix.bits - 1)).reshape(matrix.rows, -1, matrix.block)
    numbers = blocked.astype(np.float32) * matrix.scales[..., None]
    if matrix.shift is not None:
        numbers += matrix.shift[..., None]
    return numbers.reshape(matrix.rows, -1)


def _by_rows(packed: NDArray[np.uint32], change: Callable[[NDArray[np.uint32]], Bytes]) -> Bytes:
    """Some rows at a time, since a change takes several times what it makes."""
    step = max(1, _AT_ONCE // packed.shape[1])
    return np.concatenate([change(packed[at : at + step]) for at in range(0, len(packed), step)])


def _widened(packed: NDArray[np.uint32], bits: int, held: int) -> Bytes:
    """Codes of so many bits in more, as far from their middle as they were from that of their own width."""
    spread = _spread(packed, bits, held)
    spread += np.uint64(_repeated(2 ** (held - 1) - 2 ** (bits - 1), held, 8))
    return spread.view(np.uint8).reshape(*spread.shape, 8)[..., :held].reshape(len(packed), -1)


def _spread(packed: NDArray[np.uint32] | Bytes, bits: int, held: int) -> NDArray[np.uint64]:
    """Eight codes to a number, each in `held` bits instead of `bits`, the first lowest: halves are moved apart, then
    their halves."""
    stream = packed.view(np.uint8).reshape(len(packed), -1, bits)
    wide = np.zeros((*stream.shape[:2], 8), np.uint8)
    wide[..., :bits] = stream
    eight = wide.view(np.uint64)[..., 0]
    for half in (4, 2, 1):
        low = np.uint64(_repeated(2 ** (half * bits) - 1, 2 * half * held, 4 // half))
        high = low << np.uint64(half * bits)
        eight = (eight & low) | (eight & high) << np.uint64(half * (held - bits))
    return eight


def _repeated(value: int, every: int, times: int) -> int:
    return sum(value << (every * place) for place in range(times))


def _powers_of_two(exponents: Bytes | Floats) -> Floats:
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)


def _e4m3(codes: Bytes | Floats) -> Floats:
    """Floats of 8 bits: a sign, four bits of exponent, three of fraction."""
    whole = codes.astype(np.int32)
    exponent, fraction = (whole >> 3) & 15, whole & 7
    size = np.where(exponent == 0, np.ldexp(fraction / 8, -6), np.ldexp(1 + fraction / 8, exponent - 7))
    return np.where(whole & 128, -size, size).astype(np.float32)
