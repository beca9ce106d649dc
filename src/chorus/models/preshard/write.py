"""Cuts a model into one folder per rank; `folder` says what such a folder is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from chorus.models.architectures import architecture
from chorus.models.errors import ModelError
from chorus.models.hub.files import description_files
from chorus.models.layer_names import embeds_tokens, is_foreign, is_tied, layer_count, layers_of_names, place_of
from chorus.models.preshard.folder import (
    CHECKSUMS_FILE,
    FORMAT,
    PLAN_FILE,
    WEIGHTS_FILE,
    Division,
    digest_of,
    rank_name,
    remember_verified,
)
from chorus.models.store import ORIGIN_FILE
from chorus.models.tensors import INDEX_FILE, TensorInfo, read_json, tensor_index
from chorus.models.values import LocalModel, Progress, ProgressCallback, ignore_progress
from chorus.platform.storage import disk

_PIECE = 8 << 20
_ALIGNMENT = 8


@dataclass(frozen=True)
class RankFolder:
    """The folder that was written for one rank."""

    rank: int
    path: Path
    first_layer: int
    last_layer: int
    nbytes: int


@dataclass(frozen=True)
class Piece:
    """A tensor to be written: what the header says of it, and its bytes, made when it is its turn."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    content: Callable[[], Iterator[bytes | memoryview]]


@dataclass(frozen=True)
class FolderContent:
    """What is written for one rank. `config` replaces the model's own description where slices need another."""

    pieces: Sequence[Piece]
    config: Mapping[str, Any] | None = field(default=None)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


def write_preshard(
    model: LocalModel, split: Sequence[int], output: Path, progress: ProgressCallback = ignore_progress
) -> list[RankFolder]:
    """Write runs of layers, a folder per rank under `output`. Lists are in rank order; rank 0 holds the last layers."""
    config, tensors = read_json(model.path / "config.json"), tensor_index(model.path)
    layers = layer_count(config, layers_of_names(tensors))
    _check_split(split, layers)
    with Sources() as sources:
        contents = [
            FolderContent(sources.pieces(tensors_of_rank(rank, split, config, tensors))) for rank in range(len(split))
        ]
        return write_folders(model, Division("pipeline", tuple(split)), layers, contents, output, progress)


def write_folders(
    model: LocalModel,
    division: Division,
    layers: int,
    contents: Sequence[FolderContent],
    output: Path,
    progress: ProgressCallback = ignore_progress,
) -> list[RankFolder]:
    """Write all folders: they are there completely, or not at all."""
    if output.exists() and any(output.iterdir()):
        raise ModelError(f"{output} is not empty; remove it, or name another folder.")
    sizes = [content.nbytes for content in contents]
    _check_space(output, sum(sizes))
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    report = _Report(progress, sum(sizes))
    made = {
        "format": FORMAT,
        "model": model.id,
        "parallel": division.parallel,
        "layers": layers,
        "split" if division.parallel == "pipeline" else "weights": list(division.parts),
    }
    try:
        aside.chmod(0o755)
        _write_descriptions(aside, model, made)
        for rank, content in enumerate(contents):
            held = division.layers_of(rank, layers)
            own = {**made, "rank": rank, "first_layer": held.start, "last_layer": held.stop - 1}
            _write_part(aside / rank_name(rank), model, own, content, report)
        if output.exists():
            output.rmdir()
        os.rename(aside, output)
    except OSError as error:
        raise ModelError(f"Cannot write {output}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    parts = []
    for rank, size in enumerate(sizes):
        held = division.layers_of(rank, layers)
        parts.append(RankFolder(rank, output / rank_name(rank), held.start, held.stop - 1, size))
    return parts


def _check_split(split: Sequence[int], layers: int) -> None:
    shown = ",".join(map(str, split))
    if not split or any(count < 1 for count in split):
        raise ModelError(f"split {shown}: every rank needs at least 1 layer")
    if sum(split) != layers:
        raise ModelError(f"split {shown} adds up to {sum(split)} layers where the model has {layers}")


def tensors_of_rank(
    rank: int, split: Sequence[int], config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """What a rank's stage reads: its layers, the embedding before the first, norm and head after the last."""
    layers, tied = layers_of_names(tensors), is_tied(config, tensors)
    held = Division("pipeline", tuple(split)).layers_of(rank, sum(split))
    ends = {"around"}
    if rank == len(split) - 1:
        ends.add("before")
    if rank == 0:
        ends.add("after")
    everywhere = architecture(str(config.get("model_type"))).read_by_all

    def wanted(name: str, info: TensorInfo) -> bool:
        if is_foreign(name):
            return False
        if (everywhere and re.search(everywhere, name)) or (tied and rank == 0 and embeds_tokens(name)):
            return True
        return layers[name] in held if name in layers else place_of(name, len(info.shape)) in ends

    return {name: info for name, info in tensors.items() if wanted(name, info)}


class Sources:
    """The files of a model, each opened once. Bytes are taken as they are stored, in the order they lie on the disk."""

    def __init__(self) -> None:
        self._open: dict[Path, BinaryIO] = {}

    def pieces(self, tensors: Mapping[str, TensorInfo]) -> list[Piece]:
        ordered = sorted(tensors.items(), key=lambda item: (item[1].file, item[1].start))
        return [Piece(name, info.dtype, info.shape, info.nbytes, self._reader(name, info)) for name, info in ordered]

    def _reader(self, name: str, info: TensorInfo) -> Callable[[], Iterator[bytes]]:
        def read() -> Iterator[bytes]:
            source = self._open.get(info.file)
            if source is None:
                source = self._open[info.file] = info.file.open("rb")
            source.seek(info.start)
            left = info.nbytes
            while left:
                piece = source.read(min(_PIECE, left))
                if not piece:
                    raise ModelError(f"{info.file} ends in the middle of tensor {name}; fetch the model again.")
                left -= len(piece)
                yield piece

        return read

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()


class _Report:
    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, count: int) -> None:
        self._done += count
        self._progress(Progress("writing one folder per rank", self._done, self._total))


def _check_space(output: Path, total: int) -> None:
    existing = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if total > free:
        raise ModelError(f"{output} needs {total} bytes and {existing} has {free} free; choose another disk.")


def _write_descriptions(folder: Path, model: LocalModel, made: Mapping[str, Any]) -> None:
    (folder / PLAN_FILE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    for name in description_files(file.name for file in model.path.iterdir() if file.is_file()):
        if name not in (INDEX_FILE, ORIGIN_FILE, PLAN_FILE, CHECKSUMS_FILE):
            shutil.copyfile(model.path / name, folder / name)


def _write_part(
    folder: Path, model: LocalModel, made: Mapping[str, Any], content: FolderContent, report: _Report
) -> None:
    folder.mkdir()
    _write_descriptions(folder, model, made)
    if content.config is not None:
        (folder / "config.json").write_text(json.dumps(content.config, indent=2) + "\n", encoding="utf-8")
    sums = {WEIGHTS_FILE: _write_weights(folder / WEIGHTS_FILE, content.pieces, report)}
    for file in sorted(folder.iterdir()):
        if file.name not in sums:
            sums[file.name] = digest_of(file)
    listed = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in sums.items()}
    (folder / CHECKSUMS_FILE).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    remember_verified(folder, listed)


def _write_weights(file: Path, pieces: Sequence[Piece], report: _Report) -> str:
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    position = 0
    for piece in pieces:
        end = position + piece.nbytes
        header[piece.name] = {"dtype": piece.dtype, "shape": list(piece.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    with file.open("wb") as target:

        def put(data: bytes | memoryview) -> None:
            digest.update(data)
            target.write(data)

        put(struct.pack("<Q", len(text)) + text)
        for piece in pieces:
            for data in piece.content():
                put(data)
                report.add(len(data))
        target.flush()
        disk.sync(target.fileno())
    return digest.hexdigest()
