"""From what a user wrote to a model on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from chorus.models.catalog import CATALOG
from chorus.models.errors import ModelError
from chorus.models.hub.cache import fetch_model
from chorus.models.imports import ensure_catalog_model, import_gguf
from chorus.models.preshard.folder import is_preshard, read_preshard
from chorus.models.store import Entry, Store
from chorus.models.tensors import check_folder
from chorus.models.values import LocalModel, Progress, ignore_progress

_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)


def resolve(
    name: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    offline: bool | None = None,
    weights: bool = True,
) -> LocalModel:
    """Finds, downloads or imports the model that `name` means, and checks that its files are whole.

    A name is a catalog or store name, a folder, a .gguf file, or a Hugging Face id, tried in this order; a folder that
    shares a catalog name is reached as ./NAME. `offline` None follows HF_HUB_OFFLINE; True also keeps pip from being
    asked. Without `weights` a hub model's description and tokenizer are fetched and its weights are not.
    """
    try:
        return _resolve(name, progress or ignore_progress, offline, weights)
    except OSError as error:  # somebody else's folder, a name that is too long, a disk that fails
        raise ModelError(
            f"Cannot read {name:.200}: {error.strerror or error}; check the path and who may read it."
        ) from error


def _resolve(name: str, report: Callable[[Progress], None], offline: bool | None, weights: bool) -> LocalModel:
    store = Store.default()
    if _is_entry(name, store):
        return _named(name, store, report, offline, weights)
    # os.path leaves the ~ of an unknown user as it is, where Path raises.
    path = Path(os.path.expanduser(name))
    if name and path.is_dir() and is_preshard(path):
        return _checked(LocalModel(name, read_preshard(path).model, path.resolve()), weights=False)
    if name and path.is_dir():
        return _checked(LocalModel(name, path.resolve().name, path.resolve()), weights)
    if name.endswith(".gguf") and path.is_file():
        return _checked_entry(name, import_gguf(path, store=store, progress=report), weights)
    if _is_path(name):
        raise ModelError(_unknown_path(path))
    return _named(name, store, report, offline, weights)


def stored_model(name: str, *, weights: bool = True) -> LocalModel:
    """What this machine already has under a name that somebody else said: never a folder or file of that name."""
    return _named(name, Store.default(), ignore_progress, True, weights)


def is_fetchable(name: str) -> bool:
    """Whether a client may have it fetched: it has a name in the catalog or at the hub, and is no path."""
    return name in CATALOG or split_hub_id(name) is not None


def fetch_named(
    name: str, progress: Callable[[Progress], None] = ignore_progress, *, weights: bool = True
) -> LocalModel:
    """For clients: what the catalog, the store or the hub has under a name, never a folder or file of that name."""
    try:
        return _named(name, Store.default(), progress, None, weights)
    except OSError as error:
        raise ModelError(f"Cannot store {name:.200}: {error.strerror or error}; check the disk.") from error


def named_model(name: str) -> Path:
    """For leaders that are not authenticated: only what is in the store already, found by name and by nothing else."""
    if not is_name(name):
        raise ModelError(
            f"this machine's store has no model {name}, and the rank was not started with it: start it with --model "
            "FOLDER, or run `chorus models import FOLDER --name NAME` here"
        )
    try:
        return stored_model(name).path
    except ModelError as error:
        raise ModelError(f"{name}: {error} To get it: chorus models pull {name}") from error


def name_elsewhere(model: LocalModel) -> str:
    """What other machines may have this model by: as it was written where that is a name of the hub, with its revision;
    otherwise its own name, as their stores may have it.
    """
    parsed = split_hub_id(model.name)
    return model.name if parsed and parsed[0] == model.id else model.id


def is_name(name: str) -> bool:
    """Whether it is a name, as opposed to a path: of the catalog, of the store or of Hugging Face."""
    return _is_entry(name, Store.default()) or split_hub_id(name) is not None


def _is_entry(name: str, store: Store) -> bool:
    return name in CATALOG or store.get(name) is not None


def _named(
    name: str, store: Store, report: Callable[[Progress], None], offline: bool | None, weights: bool
) -> LocalModel:
    if name in CATALOG:
        entry = ensure_catalog_model(CATALOG[name], store=store, progress=report, offline=bool(offline))
        return _checked_entry(name, entry, weights)
    if stored := store.get(name):
        return _checked_entry(name, stored, weights)
    if parsed := split_hub_id(name):
        model_id, revision = parsed
        folder = fetch_model(model_id, revision, weights=weights, progress=report, offline=offline)
        return _checked(LocalModel(name, model_id, folder), weights)
    known = dict.fromkeys([*CATALOG, *(entry.name for entry in store.entries())])
    raise ModelError(_unknown(name, list(known)))


def split_hub_id(name: str) -> tuple[str, str | None] | None:
    """(id, revision) of ORGANISATION/NAME[@REVISION], or None where it is not of that form."""
    match = _HUB_ID.fullmatch(name)
    if match is None or name.startswith((".", "/", "~")) or ".." in name:
        return None
    return match["id"], match["revision"]


def _is_path(name: str) -> bool:
    """Whether it can be nothing but a path."""
    return name.endswith(".gguf") or (split_hub_id(name) is None and ("/" in name or name.startswith("~")))


def _checked_entry(name: str, entry: Entry, weights: bool) -> LocalModel:
    try:
        return _checked(LocalModel(name, entry.name, entry.path), weights)
    except ModelError as error:
        raise ModelError(f"{error} To do so, first run: chorus models rm {entry.name}") from error


def _checked(model: LocalModel, weights: bool) -> LocalModel:
    check_folder(model.path, weights)
    return model


def _unknown_path(path: Path) -> str:
    if path.exists():
        return f"{path.absolute()} is neither a folder nor a .gguf file; give one of these."
    path = path.absolute()
    siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, siblings, 1)
    hint = f"perhaps you mean {path.with_name(near[0])}" if near else "check the path"
    return f"There is no folder or file {path}; {hint}."


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    hint = f"perhaps you mean {near[0]}; " if near else ""
    return (
        f"There is no model {name}: {hint}give a folder, a .gguf file, a Hugging Face id (ORGANISATION/NAME) "
        f"or one of: {', '.join(known)}."
    )
