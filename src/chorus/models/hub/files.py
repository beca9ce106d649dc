"""Which files of a repository make a model: its description, and weights in safetensors form."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from chorus.models.errors import ModelError
from chorus.models.tensors import INDEX_FILE, WEIGHTS_GLOB

DESCRIPTIONS = ("*.json", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja")


def description_files(names: Iterable[str]) -> list[str]:
    """Configuration and tokenizer: what says how to use the weights."""
    return sorted(
        name for name in names if "/" not in name and any(fnmatchcase(name, pattern) for pattern in DESCRIPTIONS)
    )


def choose_weights(model_id: str, names: Iterable[str], index: dict[str, str]) -> list[str]:
    """The files that the index names, or the one form that needs no index; never pickles, never other formats."""
    present = set(names)
    if index:
        chosen = sorted(set(index.values()))
        if missing := [name for name in chosen if name not in present]:
            raise ModelError(f"{model_id} lacks {missing[0]}, which its {INDEX_FILE} names; tell its publisher.")
        return chosen
    if chosen := sorted(name for name in present if fnmatchcase(name, WEIGHTS_GLOB)):
        return chosen
    if gguf := sorted(name for name in present if name.endswith(".gguf")):
        raise ModelError(
            f"{model_id} has only GGUF weights; download one, such as {gguf[0]}, and run: chorus models import FILE"
        )
    raise ModelError(f"{model_id} has no {WEIGHTS_GLOB}; choose a repository with safetensors weights.")
