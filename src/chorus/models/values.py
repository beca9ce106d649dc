"""The small values that every part of the model store hands around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chorus.platform.progress import Progress as Progress


@dataclass(frozen=True)
class LocalModel:
    """A model that is on this machine, ready to load."""

    name: str
    """What the user wrote."""
    id: str
    """The canonical name: a hub id, a catalog name, the name of a store entry or of a folder."""
    path: Path
    """A folder with config.json, model*.safetensors and the tokenizer's files."""


@dataclass(frozen=True)
class CachedModel:
    """A model in the Hugging Face cache of this machine, with all its revisions."""

    id: str
    revisions: tuple[str, ...]
    path: Path
    nbytes: int


ProgressCallback = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Stands in where nobody watches, so that callers need no test for None."""
