"""A model cut into one folder per rank: its tensors, the descriptions, what it was cut for, and checksums.

The folder above holds the descriptions and the plan alone, so that it can be named as a model; weights are only in the
ranks' folders. One of those can be copied to its rank's machine alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, Literal

from chorus.models.errors import ModelError
from chorus.models.tensors import read_json
from chorus.platform.storage.files import write_whole

PLAN_FILE = "plan.json"
CHECKSUMS_FILE = "checksums.json"
WEIGHTS_FILE = "model.safetensors"
VERIFIED_FILE = ".verified.json"
FORMAT = 2

log = logging.getLogger("chorus.models")


@dataclass(frozen=True)
class Division:
    """Who holds what: runs of layers, or weighted slices of all of them. In rank order."""

    parallel: Literal["pipeline", "tensor"]
    parts: tuple[int, ...]

    @classmethod
    def of(cls, split: Sequence[int] | None, weights: Sequence[int] | None) -> Division:
        """The division that these options mean, with weights in the smallest numbers: only their proportions count."""
        if weights:
            divisor = gcd(*weights)
            return cls("tensor", tuple(weight // divisor for weight in weights))
        return cls("pipeline", tuple(split or ()))

    def layers_of(self, rank: int, layers: int) -> range:
        """The layers of one rank; rank 0 holds the last ones of a pipeline."""
        if self.parallel == "tensor":
            return range(layers)
        first = sum(self.parts[rank + 1 :])
        return range(first, first + self.parts[rank])

    @property
    def option(self) -> str:
        """The division as the command line takes it."""
        name = "--split" if self.parallel == "pipeline" else "--parallel tensor --weights"
        return f"{name} {','.join(map(str, self.parts))}"

    def __str__(self) -> str:
        word = "split" if self.parallel == "pipeline" else "weights"
        return f"the {word} {','.join(map(str, self.parts))}"


@dataclass(frozen=True)
class Preshard:
    """What the plan file of a folder says."""

    model: str
    division: Division
    layers: int
    rank: int | None
    """Whose folder it is; None for the one above the ranks' own."""


def is_preshard(folder: Path) -> bool:
    return (folder / PLAN_FILE).is_file()


def read_preshard(folder: Path) -> Preshard:
    made = read_json(folder / PLAN_FILE)
    if made.get("format") != FORMAT:
        raise ModelError(
            f"{folder} was made by another version of Chorus; make it again: chorus models preshard --help"
        )
    try:
        parts = made["split"] if made["parallel"] == "pipeline" else made["weights"]
        division = Division(made["parallel"], tuple(map(int, parts)))
        return Preshard(str(made["model"]), division, int(made["layers"]), made.get("rank"))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / PLAN_FILE} is damaged ({error}); copy the folder again.") from None


def open_preshard(folder: Path, rank: int, division: Division, *, verify: bool = True) -> Path:
    """The folder to load this rank from, checked to be whole and made for this division.

    Contents are read and compared once; after that, sizes and times of change tell whether they must be again.
    """
    again = f"make it again: chorus models preshard MODEL {division.option} --output {folder}"
    part = folder
    if not is_preshard(folder):
        raise ModelError(f"{folder} holds no {PLAN_FILE} and is no presharded model; {again}")
    made = read_preshard(folder)
    check_division(folder, made, division)
    if made.rank is None:
        part = folder / rank_name(rank)
        if not is_preshard(part):
            raise ModelError(f"{folder} holds no part for rank {rank}; {again}")
        made = read_preshard(part)
        check_division(part, made, division)
    if made.rank != rank:
        raise ModelError(f"{part} was made for rank {made.rank}, not for rank {rank}; use that rank's folder.")
    _check_files(part, verify)
    return part


def check_division(folder: Path, made: Preshard, wanted: Division) -> None:
    if made.division != wanted:
        raise ModelError(
            f"{folder} was made for {made.division} and the plan is now {wanted}; "
            f"make it again: chorus models preshard MODEL {wanted.option} --output {folder}"
        )


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def digest_of(file: Path) -> str:
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
        if digest_of(folder / name) != expected["sha256"]:
            raise ModelError(f"{folder / name} does not match its checksum; copy the folder again.")
    remember_verified(folder, listed)


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _known_good(folder: Path) -> dict[str, list[int]]:
    file = folder / VERIFIED_FILE
    with suppress(ModelError):  # unreadable or damaged: everything is compared again
        return read_json(file) if file.is_file() else {}
    return {}


def remember_verified(folder: Path, listed: Mapping[str, Any]) -> None:
    try:
        write_whole(folder / VERIFIED_FILE, json.dumps({name: _stamp(folder / name) for name in listed}).encode())
    except OSError as error:
        log.info("cannot remember that %s is whole (%s): it is compared at each start", folder, error)
