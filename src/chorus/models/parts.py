"""A hub model of which every machine keeps only its part: known as a whole, fetched file by file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chorus.models.errors import ModelError
from chorus.models.hub import choose_weights, fetch_files, file_sizes, is_offline
from chorus.models.resolve import resolve, split_hub_id
from chorus.models.tensors import WEIGHTS_GLOB, weight_map
from chorus.models.values import LocalModel, ProgressCallback, ignore_progress


@dataclass(frozen=True)
class HubVersion:
    """One commit of a hub model: what every machine of a cluster must agree on."""

    id: str
    commit: str

    @property
    def name(self) -> str:
        return f"{self.id}@{self.commit}"

    def fetch(self, names: Iterable[str], progress: ProgressCallback = ignore_progress) -> None:
        fetch_files(self.id, self.commit, names, progress=progress)


def resolve_description(name: str, progress: ProgressCallback = ignore_progress) -> LocalModel:
    """As `resolve`, but the weights of a hub model that are not here yet stay where they are."""
    if is_offline(None) or split_hub_id(name) is None:
        return resolve(name, progress=progress)
    model = resolve(name, progress=progress, weights=False)
    # What is whole is checked like any other model.
    return model if hub_version(model) and _lacks_weights(model.path) else resolve(name, progress=progress)


def hub_version(model: LocalModel) -> HubVersion | None:
    """None for a model that is not from the hub's cache."""
    parsed = split_hub_id(model.name)
    in_cache = parsed is not None and model.id == parsed[0] and model.path.parent.name == "snapshots"
    return HubVersion(model.id, model.path.name) if in_cache else None


def missing_weights(model: LocalModel) -> dict[str, int]:
    """The weight files that this machine lacks, with their sizes at the hub."""
    version = hub_version(model)
    if version is None or not _lacks_weights(model.path):
        return {}
    sizes = file_sizes(version.id, version.commit)
    chosen = choose_weights(version.id, sizes, weight_map(model.path))
    if unknown := [name for name in chosen if sizes[name] is None]:
        raise ModelError(f"The hub does not say how large {unknown[0]} of {version.name} is; pull the model whole.")
    return {name: sizes[name] or 0 for name in chosen if not (model.path / name).is_file()}


def _lacks_weights(folder: Path) -> bool:
    named = set(weight_map(folder).values())
    return not all((folder / name).is_file() for name in named) if named else not list(folder.glob(WEIGHTS_GLOB))
