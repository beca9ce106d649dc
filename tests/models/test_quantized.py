from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.models.gguf.quantized import (
    GROUP_SIZE,
    bits_of,
    is_exact,
    pack_bits,
    quantize_groups,
    quantized_types,
    repack,
)
from tests.models.gguf_files import random_rows

EXACT = [kind for kind in quantized_types() if is_exact(kind)]
ROUNDED = [kind for kind in quantized_types() if not is_exact(kind)]
# Relative to the size of the weights themselves: rounding scales to float16, or a second quantization.
ERROR_LIMIT = {Type.Q4_K: 1e-3, Type.Q5_K: 1e-3, Type.Q2_K: 0.06, Type.Q3_K: 0.025}
ERROR_LIMIT_8_BITS = 0.006


def as_mlx_reads(rows: np.ndarray, kind: Type) -> np.ndarray:
    packed = repack(rows, kind)
    scales, biases = (mx.array(part.astype(np.float32)) for part in (packed.scales, packed.biases))
    return np.array(mx.dequantize(mx.array(packed.weight), scales, biases, group_size=GROUP_SIZE, bits=bits_of(kind)))


def test_the_types_that_must_be_lossless_are() -> None:
    assert {Type.Q4_0, Type.Q4_1, Type.Q8_0} <= set(EXACT)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_lossless_types_keep_every_bit(kind: Type) -> None:
    rows = random_rows(kind, (7, 512), np.random.default_rng(1))
    assert np.array_equal(as_mlx_reads(rows, kind), dequantize(rows, kind))


@pytest.mark.parametrize("kind", ROUNDED, ids=lambda kind: kind.name)
def test_other_types_stay_close(kind: Type) -> None:
    rows = random_rows(kind, (7, 512), np.random.default_rng(2))
    exact = dequantize(rows, kind)
    error = np.sqrt(np.mean((as_mlx_reads(rows, kind) - exact) ** 2) / np.mean(exact**2))
    assert 0 < error < ERROR_LIMIT.get(kind, ERROR_LIMIT_8_BITS)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_bits_are_packed_as_mlx_packs_them(bits: int) -> None:
    q = np.random.default_rng(bits).integers(0, 1 << bits, (3, 96), dtype=np.uint8)
    # Each group holds its whole range, so that MLX's own quantization of these integers is the integers themselves.
    q[:, ::GROUP_SIZE], q[:, 1::GROUP_SIZE] = 0, (1 << bits) - 1
    weights = mx.array(q.astype(np.float32))
    words, scales, biases = mx.quantize(weights, group_size=GROUP_SIZE, bits=bits)
    ours = mx.dequantize(mx.array(pack_bits(q, bits)), mx.ones_like(scales), mx.zeros_like(biases), GROUP_SIZE, bits)
    assert pack_bits(q, bits).shape == words.shape
    assert np.array_equal(np.array(ours), q)


@given(
    bits=st.sampled_from([4, 6, 8]),
    spread=st.floats(1e-3, 10),
    offset=st.floats(-5, 5),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_requantized_weights_are_off_by_half_a_step_at_most(bits: int, spread: float, offset: float, seed: int) -> None:
    weights = np.random.default_rng(seed).uniform(-spread, spread, (4, GROUP_SIZE)).astype(np.float32) + np.float32(
        offset
    )
    groups = quantize_groups(weights, bits)
    restored = groups.q * groups.scales + groups.biases
    step = np.ptp(weights, axis=1, keepdims=True) / ((1 << bits) - 1)
    # The grid itself is placed by two float16, each off by 2**-11 of its size.
    placing = (np.abs(weights).max(axis=1, keepdims=True) + np.ptp(weights, axis=1, keepdims=True)) * 2.0**-10
    assert (np.abs(restored - weights) <= step / 2 + placing + 1e-7).all()


def test_a_group_of_equal_weights_is_kept() -> None:
    groups = quantize_groups(np.full((1, GROUP_SIZE), 0.25, np.float32), 4)
    assert np.array_equal(groups.q * groups.scales + groups.biases, np.full((1, GROUP_SIZE), 0.25, np.float32))


def test_rows_are_repacked_alike_in_one_piece_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(Type.Q5_K, (9, 512), np.random.default_rng(3))
    whole = repack(rows, Type.Q5_K)
    monkeypatch.setattr("chorus.models.gguf.quantized._ROWS_AT_ONCE_WEIGHTS", 1024)
    pieces = repack(rows, Type.Q5_K)
    assert np.array_equal(whole.weight, pieces.weight)
    assert np.array_equal(whole.biases, pieces.biases)
