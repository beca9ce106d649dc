"""A hub model of which every machine keeps only its part: known as a whole, fetched file by file."""

from __future__ import annotations

from pathlib import Path

from chorus.models.hub.cache import is_offline
from chorus.models.hub.record import HubVersion, kept_record, weights_record
from chorus.models.resolve import resolve, split_hub_id
from chorus.models.tensors import WEIGHTS_GLOB, TensorInfo, tensor_index, weight_map
from chorus.models.values import LocalModel, ProgressCallback, ignore_progress


def resolve_description(name: str, progress: ProgressCallback = ignore_progress) -> LocalModel:
    """As `resolve`, but the weights of a hub model that are not here yet stay where they are. Offline that is good
    enough where it is known what the whole is like: other machines may have the rest.
    """
    if split_hub_id(name) is None:
        return resolve(name, progress=progress)
    model = resolve(name, progress=progress, weights=False)
    version = hub_version(model)
    in_part = version is not None and _lacks_weights(model.path)
    if version and in_part and (not is_offline(None) or kept_record(version)):
        return model
    # What is whole is checked like any other model.
    return resolve(name, progress=progress)


def hub_version(model: LocalModel) -> HubVersion | None:
    """Which commit of the hub a model is; None where it is not from the hub's cache."""
    parsed = split_hub_id(model.name)
    in_cache = parsed is not None and model.id == parsed[0] and model.path.parent.name == "snapshots"
    return HubVersion(model.id, model.path.name) if in_cache else None


def missing_weights(model: LocalModel) -> dict[str, int]:
    """The weight files that this machine lacks, with their sizes at the hub."""
    version = hub_version(model)
    if version is None or not _lacks_weights(model.path):
        return {}
    sizes = weights_record(version, model.path).sizes
    return {name: size for name, size in sizes.items() if not (model.path / name).is_file()}


def remote_tensors(model: LocalModel) -> dict[str, TensorInfo]:
    """Every tensor of a hub model of which this machine may have nothing but the description."""
    version = hub_version(model)
    return weights_record(version, model.path).tensors if version else tensor_index(model.path)


def _lacks_weights(folder: Path) -> bool:
    named = set(weight_map(folder).values())
    return not all((folder / name).is_file() for name in named) if named else not list(folder.glob(WEIGHTS_GLOB))
