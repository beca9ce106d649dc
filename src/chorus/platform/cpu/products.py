"""Whether the kernels with which a CPU multiplies packed weights (chorus.rank.products) are installed."""

from __future__ import annotations

import importlib.util

from chorus.platform.install import install_hint

PACK_GROUP = 32
"""How many weights share a scale and a shift where a model is packed as it is loaded: the fewest that MLX offers, which
loses least."""
SCALE_COPIES = 3
"""How often the kernels hold a block's scale: as it came, as they lay it out, and as a sum over the block."""
READ_COPIES = 2
"""How many of those a product reads."""
WIDTHS = (2, 4, 8)
"""Bits of the integers that the kernels hold."""
_WHOLE = ("mxfp4", "nvfp4")
"""Ways of quantizing whose numbers are whole ones times a scale, within 8 bits."""

PACKAGES = ("onnx", "onnxruntime")
REMEDY = f"packed products need {' and '.join(PACKAGES)}: {install_hint()}"


def installed() -> bool:
    """Without importing them: whether they also work shows when a rank does."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


def held_bits(bits: int, mode: str) -> int | None:
    """How wide the integers are in which the kernels hold weights that were quantized so; None: they cannot."""
    if mode in _WHOLE:
        return 8
    return next((width for width in WIDTHS if width >= bits), None) if mode == "affine" else None
