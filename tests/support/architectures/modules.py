"""Which modules of the installed mlx-lm are models."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType

import mlx_lm.models

# Upstream's olmo asks for this package when it is imported, ends the process where it is missing, and never calls it.
if importlib.util.find_spec("hf_olmo") is None:
    sys.modules["hf_olmo"] = ModuleType("hf_olmo")

# Modules of `mlx_lm.models` that models are made of.
NOT_MODELS: dict[str, str] = {
    "activations": "activation functions",
    "base": "base class of the arguments, and attention masks",
    "bitlinear_layers": "the ternary linear layer of bitnet",
    "cache": "cache classes",
    "gated_delta": "the gated delta rule that hybrid models share",
    "mla": "the per-head linear layer of latent attention",
    "pipeline": "upstream's own pipeline mix-in",
    "rope_utils": "rotary embeddings",
    "ssm": "the state-space scan that hybrid models share",
    "switch_layers": "expert layers",
}


def all_modules() -> list[str]:
    """Every module of the package, models and helpers."""
    return sorted(found.name for found in pkgutil.iter_modules(mlx_lm.models.__path__))


def is_model(name: str) -> bool:
    """A model module offers the two classes that upstream's loader asks for."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return hasattr(module, "Model") and hasattr(module, "ModelArgs")


def text_modules() -> list[str]:
    """Every module that defines a model."""
    return [name for name in all_modules() if is_model(name)]
