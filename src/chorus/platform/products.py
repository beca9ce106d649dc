"""Whether the kernels with which a CPU multiplies packed weights (chorus.rank.products) are installed."""

from __future__ import annotations

import importlib.util

from chorus.platform.install import install_hint

PACKAGES = ("onnx", "onnxruntime")
REMEDY = f"packed products need {' and '.join(PACKAGES)}: {install_hint()}"


def installed() -> bool:
    """Without importing them: whether they also work shows when a rank does."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)
