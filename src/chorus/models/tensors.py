"""What a model folder holds, read from safetensors headers alone.

Headers say which bytes each tensor takes, so a truncated file is found before a single weight is loaded, and a rank
can tell which files hold its tensors.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorus.models.errors import ModelError

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_GLOB = "model*.safetensors"

_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.npz", "*.safetensors")
_HEADER_LIMIT = 100 << 20
_REMEDY = "check that it is there and may be read, or fetch the model again."
_LENGTH_BYTES = 8
_LONGEST_NAME = 255
_MOST_DIMENSIONS = 16
_LARGEST_COUNT = 1 << 48
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: bytes `start` to `end` of `file`, counted from the start of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def check_folder(path: Path, weights: bool = True) -> None:
    """Raises ModelError where a folder is no model in Hugging Face form, or its files are not whole."""
    config = path / "config.json"
    if not config.is_file():
        raise ModelError(f"{path} has no config.json and is no model folder; {_instead_of(path)}.")
    if not isinstance(read_json(config).get("model_type"), str):
        raise ModelError(f"{config} names no model_type, so the architecture is unknown; fetch the model again.")
    if weights:
        tensor_index(path)


def _instead_of(folder: Path) -> str:
    """What to give in place of a folder that is no model, by what is in it."""
    if gguf := next(iter(sorted(folder.glob("*.gguf"))), None):
        return f"give its .gguf file itself, {gguf}"
    if inner := next(iter(sorted([*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")])), None):
        return f"perhaps you mean {inner.parent}"
    if (folder / "adapter_config.json").is_file():
        return "it holds an adapter: join that with its model (mlx_lm.fuse) and give the folder that comes of it"
    return "give a folder in Hugging Face form"


def tensor_index(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of a model folder, each file checked against its own header and against the index file."""
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(path):
        for name, info in read_header(file).items():
            if name in tensors:
                raise ModelError(
                    f"Tensor {name} is both in {tensors[name].file.name} and in {file.name} of {path}; "
                    "remove the file that does not belong to the model."
                )
            tensors[name] = info
    for name, filename in weight_map(path).items():
        if name not in tensors or tensors[name].file.name != filename:
            raise ModelError(
                f"{path / filename} lacks tensor {name}, which {INDEX_FILE} promises; fetch the model again."
            )
    return tensors


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that make up the model, all of them present."""
    named = sorted(set(weight_map(path).values()))
    if missing := [name for name in named if not (path / name).is_file()]:
        raise ModelError(f"{path} lacks {', '.join(missing)}, named in {INDEX_FILE}; fetch the model again.")
    files = [path / name for name in named] or sorted(path.glob(WEIGHTS_GLOB))
    if not files:
        raise ModelError(f"{path} holds no {WEIGHTS_GLOB}{_other_weights(path)}.")
    return files


def _other_weights(path: Path) -> str:
    """What is there instead, and what to do about it."""
    if gguf := next(iter(sorted(path.glob("*.gguf"))), None):
        return f": give its .gguf file itself, {gguf}"
    others = sorted(file.name for pattern in _OTHER_WEIGHTS for file in path.glob(pattern))
    if others:
        return f" but {others[0]}: choose a copy of the model in safetensors form, such as those of mlx-community"
    return "; give a folder in Hugging Face form, or a .gguf file"


def weight_map(path: Path) -> dict[str, str]:
    """Tensor name to file name, as the index file of a folder says; empty where one file needs no index."""
    index = path / INDEX_FILE
    if not index.is_file():
        return {}
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(value, str) for value in mapping.values()):
        raise ModelError(f"{index} has no weight_map of tensor names to file names; fetch the model again.")
    if outside := [name for name in mapping.values() if not _is_file_name(name)]:
        raise ModelError(
            f"{index} names {outside[0]!a:.80}, which is outside the model's folder or no name at all; do not use it."
        )
    return mapping


def _is_file_name(name: str) -> bool:
    return name.isprintable() and 0 < len(name.encode()) <= _LONGEST_NAME and Path(name).name == name != ".."


def files_holding(names: Iterable[str], mapping: dict[str, str]) -> list[str]:
    """The files that together hold these tensors: what a rank needs and no more."""
    wanted = list(names)
    if missing := [name for name in wanted if name not in mapping]:
        raise ModelError(f"No file holds tensor {missing[0]} ({len(missing)} of {len(wanted)} are missing).")
    return sorted({mapping[name] for name in wanted})


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, checked to fill it exactly."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(_LENGTH_BYTES)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == _LENGTH_BYTES else 0
            if not 2 <= length <= _HEADER_LIMIT or _LENGTH_BYTES + length > size:
                raise ModelError(f"{file} is truncated or no safetensors file ({size} bytes); fetch the model again.")
            header = stream.read(length)
    except OSError as error:  # a link into a cache that was cleared, somebody else's file
        raise ModelError(f"Cannot read {file}: {error.strerror or error}; {_REMEDY}") from error
    try:
        entries = json.loads(header)
        infos = {
            name: tensor_info(file, entry, _LENGTH_BYTES + length)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} has a corrupt header ({error}); fetch the model again.") from error
    _check_layout(file, size, _LENGTH_BYTES + length, infos)
    return infos


def tensor_info(file: Path, entry: Mapping[str, Any], base: int) -> TensorInfo:
    """One entry of a header, with offsets counted from `base`; raises ValueError and the like where it is none."""
    start, end = (_count(offset) for offset in entry["data_offsets"])
    shape = tuple(_count(size) for size in entry["shape"])
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions")
    return TensorInfo(file, str(entry["dtype"]), shape, base + start, base + end)


def _count(value: Any) -> int:
    """JSON has numbers of other kinds too, and of any length."""
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise ValueError(f"{str(value)[:40]} is no size")
    return value


def _check_layout(file: Path, size: int, base: int, infos: dict[str, TensorInfo]) -> None:
    position = base
    for name, info in sorted(infos.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.end > size:
            raise ModelError(
                f"{file} is truncated: tensor {name} ends at byte {info.end} of {size}; fetch the model again."
            )
        bits = _BITS.get(info.dtype)
        expected = info.nbytes if bits is None else math.prod(info.shape) * bits // 8
        if info.start != position or expected != info.nbytes:
            raise ModelError(
                f"{file} has a corrupt header: tensor {name} ({info.dtype} {list(info.shape)}) "
                f"does not match its bytes {info.start} to {info.end}; fetch the model again."
            )
        position = info.end
    if position != size:
        raise ModelError(f"{file} is corrupt: {size - position} bytes belong to no tensor; fetch the model again.")


def read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"Cannot read {file}: {error.strerror or error}; {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"Cannot read {file}, which is no JSON ({error}); fetch the model again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is not a JSON object; fetch the model again.")
    return value
