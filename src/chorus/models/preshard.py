"""A model cut into one folder per rank: its tensors, the descriptions, what it was cut for, and checksums.

A rank's folder is a model folder of its own with the stored names and bytes, only fewer of them, so whatever loads a
model can load it. It can be copied to the rank's machine alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from chorus.models.errors import ModelError
from chorus.models.hub import description_files
from chorus.models.layer_names import embeds_tokens, is_foreign, is_tied, layer_count, layers_of_names, place_of
from chorus.models.store import ORIGIN_FILE
from chorus.models.tensors import INDEX_FILE, TensorInfo, read_json, tensor_index
from chorus.models.values import LocalModel, Progress, ProgressCallback, ignore_progress

PLAN_FILE = "plan.json"
CHECKSUMS_FILE = "checksums.json"
WEIGHTS_FILE = "model.safetensors"
VERIFIED_FILE = ".verified.json"

_NOTHING = re.compile(r"(?!)")
_READ_WHILE_LOADING = {
    "falcon_h1": re.compile(r"layers\.0\.mamba\.conv1d\.weight$"),
    "minicpm": re.compile(r"lm_head|embed_tokens"),
    "prism_hadamard_qwen35": re.compile(r"\.signs$"),
    "qwen3_vl_moe": re.compile(r"lm_head"),
}
"""Tensors that upstream looks up on every rank before it knows which it needs; no rank reads those of others."""
_FORMAT = 1
_PIECE = 8 << 20
_ALIGNMENT = 8

log = logging.getLogger("chorus.models")


@dataclass(frozen=True)
class Part:
    """One rank's folder."""

    rank: int
    path: Path
    first_layer: int
    last_layer: int
    nbytes: int


def write_preshard(
    model: LocalModel, split: Sequence[int], output: Path, progress: ProgressCallback = ignore_progress
) -> list[Part]:
    """One folder per rank under `output`, complete or not there at all. Lists are in rank order; rank 0 is last."""
    config, tensors = read_json(model.path / "config.json"), tensor_index(model.path)
    layers = layer_count(config, layers_of_names(tensors))
    check_split(split, layers)
    if output.exists() and any(output.iterdir()):
        raise ModelError(f"{output} is not empty; remove it, or name another folder.")
    chosen = [tensors_of_rank(rank, split, config, tensors) for rank in range(len(split))]
    total = sum(info.nbytes for part in chosen for info in part.values())
    _check_space(output, total)
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        aside.chmod(0o755)
        report = _Report(progress, total)
        for rank, part in enumerate(chosen):
            _write_part(aside / rank_name(rank), model, rank, split, part, report)
        if output.exists():
            output.rmdir()
        os.rename(aside, output)
    except OSError as error:
        raise ModelError(f"Cannot write {output}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return [
        Part(rank, output / rank_name(rank), *_range(rank, split), sum(info.nbytes for info in part.values()))
        for rank, part in enumerate(chosen)
    ]


def open_preshard(folder: Path, rank: int, split: Sequence[int], *, verify: bool = True) -> Path:
    """The folder to load this rank from, checked to be whole and made for this split.

    Contents are read and compared once; after that, sizes and times of change tell whether they must be again.
    """
    part = folder if (folder / PLAN_FILE).is_file() else folder / rank_name(rank)
    again = f"make it again: chorus models preshard MODEL --split {_commas(split)} --output {folder}"
    if not (part / PLAN_FILE).is_file():
        raise ModelError(f"{folder} holds no part for rank {rank}; {again}")
    made = read_json(part / PLAN_FILE)
    if made.get("format") != _FORMAT:
        raise ModelError(f"{part} was made by another version of Chorus; {again}")
    if made.get("rank") != rank:
        raise ModelError(f"{part} was made for rank {made.get('rank')}, not for rank {rank}; use that rank's folder.")
    if made.get("split") != list(split):
        before = _commas(made.get("split") or ())
        raise ModelError(f"{part} was made for the split {before} and the plan is now {_commas(split)}; {again}")
    _check_files(part, verify)
    return part


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def check_split(split: Sequence[int], layers: int) -> None:
    if not split or any(count < 1 for count in split):
        raise ModelError(f"split {_commas(split)}: every rank needs at least 1 layer")
    if sum(split) != layers:
        raise ModelError(f"split {_commas(split)} adds up to {sum(split)} layers where the model has {layers}")


def tensors_of_rank(
    rank: int, split: Sequence[int], config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """What a rank's stage reads: its layers, the embedding before the first, norm and head after the last."""
    layers, tied = layers_of_names(tensors), is_tied(config, tensors)
    first, last = _range(rank, split)
    ends = {"around"}
    if rank == len(split) - 1:
        ends.add("before")
    if rank == 0:
        ends.add("after")
    everywhere = _READ_WHILE_LOADING.get(str(config.get("model_type")), _NOTHING)

    def wanted(name: str, info: TensorInfo) -> bool:
        if is_foreign(name):
            return False
        if everywhere.search(name) or (tied and rank == 0 and embeds_tokens(name)):
            return True
        return first <= layers[name] <= last if name in layers else place_of(name, len(info.shape)) in ends

    return {name: info for name, info in tensors.items() if wanted(name, info)}


def _range(rank: int, split: Sequence[int]) -> tuple[int, int]:
    """First and last layer of a rank: rank 0 holds the last ones."""
    first = sum(split[rank + 1 :])
    return first, first + split[rank] - 1


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


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


def _write_part(
    folder: Path, model: LocalModel, rank: int, split: Sequence[int], tensors: Mapping[str, TensorInfo], report: _Report
) -> None:
    folder.mkdir()
    first, last = _range(rank, split)
    made = {
        "format": _FORMAT,
        "model": model.id,
        "parallel": "pipeline",
        "layers": sum(split),
        "split": list(split),
        "rank": rank,
        "first_layer": first,
        "last_layer": last,
    }
    (folder / PLAN_FILE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    for name in description_files(file.name for file in model.path.iterdir() if file.is_file()):
        if name not in (INDEX_FILE, ORIGIN_FILE, PLAN_FILE, CHECKSUMS_FILE):
            shutil.copyfile(model.path / name, folder / name)
    sums = {WEIGHTS_FILE: _write_weights(folder / WEIGHTS_FILE, tensors, report)}
    for file in sorted(folder.iterdir()):
        if file.name not in sums:
            sums[file.name] = _digest(file)
    listed = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in sums.items()}
    (folder / CHECKSUMS_FILE).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    _remember(folder, listed)


def _write_weights(file: Path, tensors: Mapping[str, TensorInfo], report: _Report) -> str:
    """Bytes are copied as they are stored, in the order in which they lie on the disk."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].file, item[1].start))
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    position = 0
    for name, info in ordered:
        end = position + info.nbytes
        header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    with file.open("wb") as target:

        def put(piece: bytes) -> None:
            digest.update(piece)
            target.write(piece)

        put(struct.pack("<Q", len(text)) + text)
        sources: dict[Path, BinaryIO] = {}
        try:
            for name, info in ordered:
                if info.file not in sources:
                    sources[info.file] = info.file.open("rb")
                for piece in _pieces(sources[info.file], name, info):
                    put(piece)
                    report.add(len(piece))
        finally:
            for source in sources.values():
                source.close()
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _pieces(source: BinaryIO, name: str, info: TensorInfo) -> Iterator[bytes]:
    source.seek(info.start)
    left = info.nbytes
    while left:
        piece = source.read(min(_PIECE, left))
        if not piece:
            raise ModelError(f"{info.file} ends in the middle of tensor {name}; fetch the model again.")
        left -= len(piece)
        yield piece


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_files(folder: Path, verify: bool) -> None:
    listed = read_json(folder / CHECKSUMS_FILE)
    if WEIGHTS_FILE not in listed:
        raise ModelError(f"{folder / CHECKSUMS_FILE} does not list {WEIGHTS_FILE}; copy the folder again.")
    for name, expected in listed.items():
        file = folder / name
        if not file.is_file():
            raise ModelError(f"{folder} lacks {name}; copy the folder again.")
        if (size := file.stat().st_size) != expected["bytes"]:
            raise ModelError(f"{file} has {size} bytes where {expected['bytes']} are expected; copy the folder again.")
    known = _known_good(folder)
    if not verify or all(known.get(name) == _stamp(folder / name) for name in listed):
        return
    for name, expected in listed.items():
        if _digest(folder / name) != expected["sha256"]:
            raise ModelError(f"{folder / name} does not match its checksum; copy the folder again.")
    _remember(folder, listed)


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _known_good(folder: Path) -> dict[str, list[int]]:
    file = folder / VERIFIED_FILE
    with suppress(ModelError):  # unreadable or damaged: everything is compared again
        return read_json(file) if file.is_file() else {}
    return {}


def _remember(folder: Path, listed: Mapping[str, Any]) -> None:
    try:
        (folder / VERIFIED_FILE).write_text(json.dumps({name: _stamp(folder / name) for name in listed}))
    except OSError as error:
        log.info("cannot remember that %s is whole (%s): it is compared at each start", folder, error)
