"""Writes one safetensors file tensor by tensor, so that a model larger than memory can be imported."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chorus.platform.storage import disk

_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that is going to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


def write_safetensors(path: Path, specs: list[TensorSpec], arrays: Iterable[np.ndarray]) -> None:
    """Arrays come in the order of their specs, one at a time; each must have the bytes its spec promises."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    position = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [position, position + spec.nbytes],
        }
        position += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for spec, array in zip(specs, arrays, strict=True):
            if array.nbytes != spec.nbytes:
                raise ValueError(f"{spec.name} has {array.nbytes} bytes, not {spec.nbytes}")
            stream.write(np.ascontiguousarray(array).data)
        stream.flush()
        disk.sync(stream.fileno())
