"""GGUF blocks to MLX affine groups.

MLX keeps a group of 32 weights as unsigned integers q with one scale and one bias, w = q * scale + bias. GGUF's
simple types are of that form already and only change their layout; the others are decoded and quantized anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

GROUP_SIZE = 32
_SUPER_BLOCK = 256
_ROWS_AT_ONCE_WEIGHTS = 1 << 22

Type: TypeAlias = GGMLQuantizationType


@dataclass(frozen=True)
class Groups:
    """Integers (rows, columns) with a scale and a bias (rows, columns / 32) each; not packed yet."""

    q: np.ndarray
    scales: np.ndarray
    biases: np.ndarray


@dataclass(frozen=True)
class Packed:
    """A quantized tensor as MLX stores it: uint32 words, float16 scales and biases."""

    weight: np.ndarray
    scales: np.ndarray
    biases: np.ndarray


@dataclass(frozen=True)
class _Rule:
    bits: int
    unpack: Callable[[np.ndarray], Groups]
    exact: bool


def is_quantized(kind: Type) -> bool:
    return kind in _RULES


def is_exact(kind: Type) -> bool:
    """Whether the type's numbers are all kept; otherwise scales are rounded, or weights quantized anew."""
    return kind in _RULES and _RULES[kind].exact


def bits_of(kind: Type) -> int:
    return _RULES[kind].bits


def quantized_types() -> list[Type]:
    return list(_RULES)


def repack(rows: np.ndarray, kind: Type) -> Packed:
    """Raw GGUF rows (rows, bytes) to MLX's three arrays, a slab of rows at a time to bound memory."""
    rule = _RULES[kind]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    columns = rows.shape[1] // block_bytes * block
    weight = np.empty((len(rows), columns * rule.bits // 32), np.uint32)
    scales = np.empty((len(rows), columns // GROUP_SIZE), np.float16)
    biases = np.empty_like(scales)
    step = max(1, _ROWS_AT_ONCE_WEIGHTS // columns)
    for first in range(0, len(rows), step):
        slab = slice(first, first + step)
        groups = rule.unpack(np.ascontiguousarray(rows[slab]).reshape(-1, block_bytes))
        count = len(rows[slab])
        weight[slab] = pack_bits(groups.q.reshape(count, columns), rule.bits)
        scales[slab] = groups.scales.reshape(count, -1)
        biases[slab] = groups.biases.reshape(count, -1)
    return Packed(weight, scales, biases)


def pack_bits(q: np.ndarray, bits: int) -> np.ndarray:
    """Integers to uint32 words as one stream of bits, the lowest first."""
    q = np.ascontiguousarray(q, np.uint8)
    if bits == 8:
        stream = q
    elif bits == 4:
        stream = q[:, 0::2] | (q[:, 1::2] << 4)
    else:
        single = np.unpackbits(q[..., None], axis=-1, count=bits, bitorder="little")
        stream = np.packbits(single.reshape(len(q), -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(stream).view("<u4")


def quantize_groups(weights: np.ndarray, bits: int) -> Groups:
    """Float weights to the nearest steps between each group's least and greatest weight."""
    groups = weights.astype(np.float32).reshape(-1, GROUP_SIZE)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    steps = (1 << bits) - 1
    # Rounded first, so that the integers are the best ones for the scale and bias that will be stored.
    scale = ((high - low) / steps).astype(np.float16).astype(np.float32)
    bias = low.astype(np.float16).astype(np.float32)
    divisor = np.where(scale == 0, np.float32(1), scale)
    q = np.clip(np.rint((groups - bias) / divisor), 0, steps).astype(np.uint8)
    return Groups(q, scale, bias)


def _half(block_bytes: np.ndarray) -> np.ndarray:
    """A float16 that lies in the blocks' bytes, one per block, as float32."""
    return np.ascontiguousarray(block_bytes).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """GGUF keeps the low halves of a run of bytes for the first weights, the high halves for those after."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> Groups:
    scale = _half(blocks[:, :2])
    return Groups(_nibbles(blocks[:, 2:]), scale, -8 * scale)


def _q4_1(blocks: np.ndarray) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q5_0(blocks: np.ndarray) -> Groups:
    scale = _half(blocks[:, :2])
    return Groups(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scale, -16 * scale)


def _q5_1(blocks: np.ndarray) -> Groups:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Groups(q, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _q8_0(blocks: np.ndarray) -> Groups:
    scale = _half(blocks[:, :2])
    # Flipping the top bit of a signed byte adds 128 to it.
    return Groups(blocks[:, 2:] ^ 0x80, scale, -128 * scale)


def _k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes: four of each are whole, four are spread in two."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_groups(blocks: np.ndarray, q: np.ndarray) -> Groups:
    scales, minima = _k_scales(blocks[:, 4:16])
    return Groups(q, _half(blocks[:, :2]) * scales, -(_half(blocks[:, 2:4]) * minima))


def _q4_k(blocks: np.ndarray) -> Groups:
    return _k_groups(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, _SUPER_BLOCK))


def _q5_k(blocks: np.ndarray) -> Groups:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit g of each of the 32 bytes is the fifth bit of the weights in group g.
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    return _k_groups(blocks, low | (high << 4))


def _requantized(kind: Type, bits: int) -> _Rule:
    def unpack(blocks: np.ndarray) -> Groups:
        return quantize_groups(dequantize(blocks, kind), bits)

    return _Rule(bits, unpack, exact=False)


_RULES = {
    Type.Q4_0: _Rule(4, _q4_0, exact=True),
    Type.Q4_1: _Rule(4, _q4_1, exact=True),
    Type.Q5_0: _Rule(5, _q5_0, exact=True),
    Type.Q5_1: _Rule(5, _q5_1, exact=True),
    Type.Q8_0: _Rule(8, _q8_0, exact=True),
    # Affine in groups of 32 as well, but a product of two numbers is their scale: rounded to float16, the rest is kept.
    Type.Q4_K: _Rule(4, _q4_k, exact=False),
    Type.Q5_K: _Rule(5, _q5_k, exact=False),
    # Groups of 16, or not affine: enough bits that the second rounding is small beside the first.
    Type.Q2_K: _requantized(Type.Q2_K, 4),
    Type.Q3_K: _requantized(Type.Q3_K, 6),
    Type.Q6_K: _requantized(Type.Q6_K, 8),
    Type.IQ4_NL: _requantized(Type.IQ4_NL, 8),
    Type.IQ4_XS: _requantized(Type.IQ4_XS, 8),
}
