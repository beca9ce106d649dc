"""Hugging Face models, kept in huggingface_hub's own cache, so that other tools share them.

Its settings hold: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Only files that are needed are fetched, code never.

Every process that knows models imports this, few ask the hub: the library, half a second of processor time, stays
behind `client` until one does, so every function here imports that by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import constants

from chorus.models.errors import ModelError
from chorus.models.values import CachedModel, ProgressCallback, ignore_progress


def downloads_dir() -> Path:
    """Where the hub's library keeps models, those too that were cut off."""
    return Path(constants.HF_HUB_CACHE)


def fetch_model(
    model_id: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    progress: ProgressCallback = ignore_progress,
    offline: bool | None = None,
) -> Path:
    """The snapshot folder of a model, with what is missing downloaded; from the cache alone where offline."""
    from chorus.models.hub import client

    if is_offline(offline):
        return client.cached_model(model_id, revision, weights)
    return client.fetch_model(model_id, revision, weights, progress)


def fetch_files(
    model_id: str,
    revision: str | None,
    filenames: Iterable[str],
    *,
    progress: ProgressCallback = ignore_progress,
    offline: bool | None = None,
) -> Path:
    """The snapshot folder with at least these files in it: for a rank, those that hold its tensors."""
    from chorus.models.hub import client

    names = sorted(set(filenames))
    if not names or any(Path(name).name != name for name in names):
        raise ModelError(f"{names} are no file names of {model_id}; name files at the top of the repository.")
    if is_offline(offline):
        return client.cached_files(model_id, revision, names)
    return client.fetch_files(model_id, revision, names, progress)


def file_sizes(model_id: str, revision: str | None) -> dict[str, int | None]:
    """Every file of a repository, as the hub tells it."""
    from chorus.models.hub import client

    return client.file_sizes(model_id, revision)


def cached_models() -> list[CachedModel]:
    """The language models in the cache; repositories without a config.json or weights are something else."""
    if not Path(constants.HF_HUB_CACHE).is_dir():
        return []
    from chorus.models.hub import client

    return client.cached_models()


def remove_cached(model_id: str, revision: str | None = None) -> int:
    """Deletes a model, or one revision of it, from the cache; answers the bytes that are free again."""
    from chorus.models.hub import client

    return client.remove_cached(model_id, revision)


def use_hub_cache(folder: Path) -> None:
    """Let this process and its children use another cache: a folder of models, or the one above it (HF_HOME)."""
    chosen = folder / "hub" if (folder / "hub").is_dir() else folder
    os.environ["HF_HUB_CACHE"] = constants.HF_HUB_CACHE = str(chosen)


def is_offline(asked: bool | None) -> bool:
    return bool(constants.HF_HUB_OFFLINE) if asked is None else asked
