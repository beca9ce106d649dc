"""A model's YAML as LocalAI's user writes it, and the LoadModel request that its core/backend/options.go makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

UNSET_CONTEXT = 4096
"""What LocalAI sends for a file without context_size, and for one below zero."""


def sent(text: str, models: Path) -> dict[str, Any]:
    """`models` is LocalAI's models folder: a model's name is joined to it, whether or not there is such a file."""
    file = yaml.safe_load(text)
    model, context = file["parameters"]["model"], file.get("context_size", 0)
    return {
        "Model": model,
        "ModelFile": str(models / model),
        "ModelPath": str(models),
        "ContextSize": context if context > 0 else UNSET_CONTEXT,
        "MaxModelLen": file.get("max_model_len", 0),
        "Options": [str(option) for option in file.get("options", [])],
        "EngineArgs": json.dumps(file["engine_args"]) if file.get("engine_args") else "",
        "Embeddings": file.get("embeddings", False),
        "NBatch": 512,
        "Threads": 4,
        "Seed": 1234567,
        "MMap": True,
        "NGPULayers": 99999999,
        "FlashAttention": "auto",
        **file.get("fields", {}),
    }
