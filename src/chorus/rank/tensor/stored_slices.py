"""Slices of stored tensors, read from disk without the rest of the tensor.

mlx-lm loads whole tensors and lets every architecture rename, stack or recompute them before use. Where a parameter is
still the very array of a file, its slice can be read from there; where it was computed, the whole must be read first.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.models.tensors import TensorInfo, tensor_index, weight_files
from chorus.rank.tensor.cuts import Cut, take
from chorus.rank.upstream import decoders

_SHORT = 512
"""Runs shorter than this are not worth a call each: their rows are read whole, a block at a time."""
_BLOCK = 4 << 20
_REPACKED_AFTER_SANITIZE = ("awq", "gptq")

_DTYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "U8": mx.uint8,
    "I8": mx.int8,
    "U16": mx.uint16,
    "I16": mx.int16,
}


class SliceReader:
    """Reads slices as `shard_model` asks for them, and counts the bytes."""

    def __init__(
        self, sources: Mapping[str, TensorInfo], progress: Callable[[int], None] = lambda bytes_read: None
    ) -> None:
        self._sources = sources
        self._progress = progress
        self.bytes_read = 0
        """From disk so far."""

    def __call__(self, path: str, array: mx.array, cut: Cut) -> mx.array:
        info = self._sources.get(path)
        if info is None or _DTYPES.get(info.dtype) != array.dtype or info.shape != tuple(array.shape):
            return take(array, cut)
        raw = self._read(info, cut)
        self._progress(self.bytes_read)
        return mx.array(raw).view(array.dtype)

    def _read(self, info: TensorInfo, cut: Cut) -> np.ndarray:
        """The wanted entries as unsigned integers of the same size: numpy has no bfloat16."""
        item = info.nbytes // math.prod(info.shape)
        unsigned = np.dtype(f"u{item}")
        rows = math.prod(info.shape[: cut.axis])
        inner = math.prod(info.shape[cut.axis + 1 :])
        row_bytes = info.shape[cut.axis] * inner * item
        runs = [(start * inner * item, stop * inner * item) for start, stop in cut.ranges]
        width = sum(stop - start for start, stop in runs)
        result = np.empty((rows, width), dtype=np.uint8)
        file = os.open(info.file, os.O_RDONLY)
        try:
            if width < _SHORT and rows > 1:
                self._read_blocks(file, info.start, row_bytes, runs, result)
            else:
                self._read_runs(file, info.start, row_bytes, runs, result)
        finally:
            os.close(file)
        kept = sum(stop - start for start, stop in cut.ranges)
        return result.view(unsigned).reshape(*info.shape[: cut.axis], kept, *info.shape[cut.axis + 1 :])

    def _read_runs(self, file: int, base: int, row_bytes: int, runs: list[tuple[int, int]], result: np.ndarray) -> None:
        for row in range(result.shape[0]):
            place = 0
            for start, stop in runs:
                target = memoryview(result[row, place : place + stop - start])
                self._fill(file, target, base + row * row_bytes + start)
                place += stop - start

    def _read_blocks(
        self, file: int, base: int, row_bytes: int, runs: list[tuple[int, int]], result: np.ndarray
    ) -> None:
        first, last = min(start for start, _ in runs), max(stop for _, stop in runs)
        count = max(1, _BLOCK // row_bytes)
        for row in range(0, result.shape[0], count):
            rows = min(count, result.shape[0] - row)
            block = np.empty(rows * row_bytes, dtype=np.uint8)
            # Neither what precedes the first wanted byte nor what follows the last one is read.
            used = block[first : (rows - 1) * row_bytes + last]
            self._fill(file, memoryview(used), base + row * row_bytes + first)
            grid = block.reshape(rows, row_bytes)
            result[row : row + rows] = np.concatenate([grid[:, start:stop] for start, stop in runs], axis=1)

    def _fill(self, file: int, target: memoryview, offset: int) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(file, [target[done:]], offset + done)
            if count == 0:
                raise OSError(f"a weight file ends at byte {offset + done}, {len(target) - done} bytes too early")
            done += count
        self.bytes_read += done


def stored_parameters(folder: Path, config: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Where each parameter lies that the architecture takes from a file unchanged. Reads headers only."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    if config.get("model_file") or method in _REPACKED_AFTER_SANITIZE:
        return {}
    index = tensor_index(folder)
    arrays: dict[str, mx.array] = {}
    for file in weight_files(folder):
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        arrays.update(loaded)
    names = {id(array): name for name, array in arrays.items()}
    # A model of its own: an architecture may change itself when it sees its weights, and bears that once.
    model = decoders.build(copy.deepcopy(dict(config)))
    final = model.sanitize(dict(arrays)) if hasattr(model, "sanitize") else arrays
    return {path: index[names[id(array)]] for path, array in final.items() if id(array) in names}


class LateSlices:
    """Slices that are read only once it is known which parameters stay on this rank."""

    def __init__(self) -> None:
        self._wanted: dict[str, tuple[mx.array, Cut]] = {}

    def note(self, path: str, array: mx.array, cut: Cut) -> mx.array:
        self._wanted[path] = array, cut
        return take(array, cut)

    def read(self, model: nn.Module, reader: SliceReader) -> None:
        modules = dict(model.named_modules())
        for path, (array, cut) in self._wanted.items():
            owner, _, name = path.rpartition(".")
            if name in modules.get(owner, ()):
                modules[owner][name] = reader(path, array, cut)
        self._wanted.clear()
