"""A tiny random configuration of every text architecture in the installed mlx-lm."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from . import dense, experts, latent, recurrent, sliding, wrappers
from .build import build_config, single_cache
from .facts import Fact, Facts, facts
from .modules import NOT_MODELS, all_modules, is_model, text_modules
from .shared import VOCABULARY, Config

# Keyed by upstream's module name.
ARCHITECTURES: dict[str, Config] = {
    **dense.CONFIGS,
    **sliding.CONFIGS,
    **experts.CONFIGS,
    **latent.CONFIGS,
    **recurrent.CONFIGS,
    **wrappers.CONFIGS,
}

# Modules that upstream itself cannot run here, with the reason.
UNSUPPORTED: dict[str, str] = {
    "olmo": "upstream adds its mask, the word 'causal', to the scores: any prompt of two tokens fails",
}
if not mx.metal.is_available():
    UNSUPPORTED |= {
        "bitnet": "its ternary product is a Metal kernel and upstream has no other",
        "muse_spark": "its norms, rotation and routing are Metal kernels and upstream has no others",
    }


def build(name: str, seed: int = 0, dtype: mx.Dtype = mx.float32) -> nn.Module:
    """The tiny model of the named module."""
    return build_config(ARCHITECTURES[name], seed, dtype)


__all__ = [
    "ARCHITECTURES",
    "NOT_MODELS",
    "UNSUPPORTED",
    "VOCABULARY",
    "Config",
    "Fact",
    "Facts",
    "all_modules",
    "build",
    "build_config",
    "facts",
    "is_model",
    "single_cache",
    "text_modules",
]
