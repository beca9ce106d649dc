"""Turns one GGUF file into a folder in the Hugging Face form that MLX loads as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from chorus.models.errors import ModelError
from chorus.models.gguf import quantized
from chorus.models.gguf.config import (
    ROPE_FACTORS,
    ModelShape,
    model_config,
    model_shape,
    quantization_config,
    tensor_names,
    unpermute,
    unpermuted_heads,
)
from chorus.models.gguf.reader import GgufFile, GgufTensor, read_gguf
from chorus.models.gguf.tokenizer import RebuiltTokenizer, rebuild_tokenizer
from chorus.models.safetensors_writer import TensorSpec, write_safetensors
from chorus.models.values import Progress, ProgressCallback, ignore_progress

_FLOATS = {
    GGMLQuantizationType.F32: ("F32", "<f4"),
    GGMLQuantizationType.F16: ("F16", "<f2"),
    # numpy has no bfloat16; the bits are moved as they are.
    GGMLQuantizationType.BF16: ("BF16", "<u2"),
}


@dataclass(frozen=True)
class _Plan:
    shape: ModelShape
    config: dict[str, Any]
    tokenizer: RebuiltTokenizer
    names: list[str]
    """The GGUF tensors in the order in which they are written"""
    specs: list[TensorSpec]


def convert_gguf(source: Path, folder: Path, progress: ProgressCallback = ignore_progress) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into an empty folder."""
    gguf = read_gguf(source)
    try:
        plan = _plan(gguf)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ModelError(f"{source} has metadata of the wrong kind ({error}); download it again.") from error
    arrays = _arrays(gguf, plan, progress)
    write_safetensors(folder / "model.safetensors", plan.specs, arrays)
    plan.tokenizer.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", plan.tokenizer.config)
    _write_json(folder / "config.json", plan.config | plan.tokenizer.special_ids)
    _write_json(folder / "generation_config.json", plan.tokenizer.special_ids)


def _plan(gguf: GgufFile) -> _Plan:
    """Everything but the weights' bytes, so that a file that cannot be imported is refused before any is read."""
    shape = model_shape(gguf)
    names = tensor_names(gguf, shape)
    for name in names:
        _check_type(gguf, gguf.tensors[name])
    config = model_config(gguf, shape, _rope_factors(gguf))
    bits = {
        hf_name.removesuffix(".weight"): quantized.bits_of(gguf.tensors[name].type)
        for name, hf_name in names.items()
        if quantized.is_quantized(gguf.tensors[name].type)
    }
    if quantization := quantization_config(bits, quantized.GROUP_SIZE):
        config["quantization"] = quantization
    specs = [spec for name, hf_name in names.items() for spec in _specs(gguf.tensors[name], hf_name)]
    return _Plan(shape, config, rebuild_tokenizer(gguf, shape.vocabulary), list(names), specs)


def _check_type(gguf: GgufFile, tensor: GgufTensor) -> None:
    is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    if tensor.type in _FLOATS or (is_matrix and quantized.is_quantized(tensor.type)):
        return
    known = ", ".join(kind.name for kind in [*_FLOATS, *quantized.quantized_types()])
    raise ModelError(
        f"{gguf.path.name} keeps tensor {tensor.name} as {tensor.type.name}, which cannot be imported "
        f"(supported: {known}); choose another quantization of the model."
    )


def _rope_factors(gguf: GgufFile) -> np.ndarray | None:
    tensor = gguf.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    if tensor.type != GGMLQuantizationType.F32 or len(tensor.shape) != 1:
        raise ModelError(f"{gguf.path.name} has a {ROPE_FACTORS} that is not a list of F32; download it again.")
    return gguf.rows(tensor)[0].view("<f4")


def _specs(tensor: GgufTensor, name: str) -> list[TensorSpec]:
    if tensor.type in _FLOATS:
        return [TensorSpec(name, _FLOATS[tensor.type][0], tensor.shape)]
    path = name.removesuffix(".weight")
    *outer, columns = tensor.shape
    words = (*outer, columns * quantized.bits_of(tensor.type) // 32)
    groups = (*outer, columns // quantized.GROUP_SIZE)
    return [
        TensorSpec(name, "U32", words),
        TensorSpec(f"{path}.scales", "F16", groups),
        TensorSpec(f"{path}.biases", "F16", groups),
    ]


def _arrays(gguf: GgufFile, plan: _Plan, progress: ProgressCallback) -> Iterator[np.ndarray]:
    total = sum(gguf.tensors[name].nbytes for name in plan.names)
    done = 0
    for name in plan.names:
        tensor = gguf.tensors[name]
        yield from _converted(gguf, plan.shape, tensor)
        done += tensor.nbytes
        progress(Progress(f"importing {gguf.path.name}", done, total))


def _converted(gguf: GgufFile, shape: ModelShape, tensor: GgufTensor) -> list[np.ndarray]:
    rows = gguf.rows(tensor)
    heads = unpermuted_heads(tensor.name, shape)
    if tensor.type in _FLOATS:
        values = rows.view(_FLOATS[tensor.type][1]).reshape(tensor.shape)
        return [values if heads is None else unpermute(values, heads)]
    packed = quantized.repack(rows if heads is None else unpermute(rows, heads), tensor.type)
    if not (np.isfinite(packed.scales).all() and np.isfinite(packed.biases).all()):
        raise ModelError(
            f"{gguf.path.name} is corrupt: tensor {tensor.name} has a scale that is no number; download it again."
        )
    return [packed.weight, packed.scales, packed.biases]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
