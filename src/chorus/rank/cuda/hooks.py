"""Where ours stand in MLX: every model's calls pass there, whatever its forward looks like."""

from __future__ import annotations

import mlx.core as mx

from chorus.platform.accelerator import device
from chorus.rank.cuda.attention import Attention
from chorus.rank.cuda.products import RowsTogether


def install() -> None:
    """On CUDA, from now on; once is enough."""
    if device.backend() != "cuda":
        return
    attention, product = mx.fast.scaled_dot_product_attention, mx.quantized_matmul
    if not isinstance(attention, Attention):
        mx.fast.scaled_dot_product_attention = Attention(attention)
    if not isinstance(product, RowsTogether):
        mx.quantized_matmul = RowsTogether(product)
