"""How far a product may be from float32, where activations are integers of 8 bits with a scale for each block."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.rank.products.packing import Floats, Packed, pack, unpack

KINDS = (
    *((bits, block, "affine") for bits in (1, 2, 3, 4, 5, 6, 8) for block in (32, 64, 128)),
    (4, 32, "mxfp4"),
    (4, 16, "nvfp4"),
)
"""All that the kernels hold: bits, numbers in a group, mode."""
_HALF_A_STEP = 1 / 254
"""Of the largest of a block: 127 steps lie between it and nothing, and what is rounded is off by half of one."""
_FLOAT32 = 1e-6
"""What adding up in another order moves a sum by, in terms of its parts' sizes."""


def quantized(bits: int, block: int, mode: str, rows: int, columns: int, *, tensor_scale: bool = False) -> Packed:
    weight = mx.random.normal((rows, columns), key=mx.random.key(bits * block))
    scale = mx.abs(weight).max() if tensor_scale else None
    parts = mx.quantize(weight, group_size=block, bits=bits, mode=mode, global_scale=scale)
    codes, scales, *biases = (np.array(part) for part in parts)
    own = None if scale is None else np.array(scale)
    made = pack(codes, scales, *(biases or [None]), bits=bits, block=block, mode=mode, tensor_scale=own)
    assert made is not None
    return made


def packed(layer: nn.QuantizedLinear) -> Packed:
    """What a layer of MLX's multiplies with."""
    biases = None if layer.biases is None else np.array(layer.biases)
    kind = {"bits": layer.bits, "block": layer.group_size, "mode": layer.mode}
    made = pack(np.array(layer.weight), np.array(layer.scales), biases, **kind)
    assert made is not None
    return made


def explained(matrix: Packed, x: Floats) -> Floats:
    """For each product the largest error that rounding x explains: each of a block's inputs is off by half a step of
    their scale, times the block's integers; the shift is multiplied by the inputs as they are.
    """
    integers = np.abs(unpack(replace(matrix, shift=None)))
    of_blocks = integers.reshape(matrix.rows, -1, matrix.block).sum(axis=-1)
    largest = np.abs(x).reshape(len(x), -1, matrix.block).max(axis=-1)
    added_up = np.abs(x) @ (integers + np.abs(unpack(matrix))).T
    return largest @ of_blocks.T * _HALF_A_STEP + added_up * _FLOAT32


def inputs(rows: int, columns: int) -> Floats:
    """Rows of very different sizes, as the rows of a batch are."""
    random = np.random.default_rng(rows * columns)
    return (random.standard_normal((rows, columns)) * 10 ** random.uniform(-2, 1, (rows, 1))).astype(np.float32)
