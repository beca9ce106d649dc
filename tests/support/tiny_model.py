"""Model folders with random weights, as a checkpoint converted for MLX would lie on disk."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model

from .architectures import ARCHITECTURES, Config
from .architectures.build import instantiate, lively

# How safetensors spells the element types that a model can hold.
_TYPE_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.uint8: "U8",
    mx.int32: "I32",
}

# The benchmark model: small enough to run anywhere, large enough that a step is bound by reading its weights.
QWEN2_75M: Config = {
    "model_type": "qwen2",
    "hidden_size": 512,
    "num_hidden_layers": 16,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
# 1.6 GB in float32, most of it in the layers, for tests of memory.
LLAMA_400M: Config = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 30,
    "intermediate_size": 3584,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write_tiny_model(
    folder: Path,
    name: str = "llama",
    *,
    seed: int = 0,
    quantize: dict[str, Any] | None = None,
    shards: int = 1,
    dtype: str = "float32",
    tokenizer: bool = True,
    **config_overrides: Any,
) -> Path:
    """The tiny model of an architecture; unquantized, it is the one that `architectures.build` gives for the seed."""
    config = override(ARCHITECTURES[name], config_overrides)
    return write_random_model(
        folder, config, seed=seed, quantize=quantize, shards=shards, dtype=dtype, tokenizer=tokenizer
    )


def write_random_model(
    folder: Path,
    config: Config,
    *,
    seed: int = 0,
    quantize: dict[str, Any] | None = None,
    shards: int = 1,
    dtype: str = "float32",
    tokenizer: bool = False,
) -> Path:
    """A folder that `mlx_lm.load` reads. One tensor at a time is in memory, so the model may be larger than that.

    `quantize` takes upstream's settings: `bits`, `group_size` and `mode`, each optional.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = instantiate(config, seed, getattr(mx, dtype))
    written = copy.deepcopy(config)
    if quantize is not None:
        settings = {"bits": None, "group_size": None, **quantize}
        model, written = quantize_model(model, written, **settings)
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())
    # From here on only the list holds the tensors, so that each can go once it is written.
    del model
    _write_weights(folder, parameters, shards, seed)
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    if tokenizer:
        from .tiny_tokenizer import write_tiny_tokenizer

        write_tiny_tokenizer(folder, vocabulary_size(config))
    return folder


def write_store_entry(store: Path, name: str, model: Path) -> None:
    """The model's copy in a store, where it is found by its name."""
    entry = store / "models" / name
    shutil.copytree(model, entry)
    (entry / "chorus.json").write_text(json.dumps({"source": "x", "sha256": "x", "size": 1, "mtime_ns": 1}))


def override(config: Config, overrides: Config) -> Config:
    """The configuration with these keys replaced wherever it has them, else added at the top."""
    result = copy.deepcopy(config)
    for key, value in overrides.items():
        owners = [part for part in (result, result.get("text_config", {})) if key in part]
        for owner in owners or [result]:
            owner[key] = value
    return result


def vocabulary_size(config: Config) -> int:
    """How many tokens the model of this configuration knows."""
    for part in (config, config.get("text_config", {})):
        for key in ("vocab_size", "num_vocab"):
            if key in part:
                return part[key]
    raise KeyError(f"the {config['model_type']} configuration names no vocabulary size")


def _write_weights(folder: Path, parameters: list[tuple[str, mx.array]], shards: int, seed: int) -> None:
    total = sum(value.nbytes for _, value in parameters)
    weight_map: dict[str, str] = {}
    for index, group in enumerate(_split(parameters, total, shards)):
        file = "model.safetensors" if shards == 1 else f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        weight_map |= {name: file for name, _ in group}
        _write_safetensors(folder / file, group, seed)
    index_entry = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_entry, indent=2))


def _split(parameters: list[tuple[str, mx.array]], total: int, shards: int) -> Iterator[list[tuple[str, mx.array]]]:
    """Consecutive groups of about equal bytes, none empty; takes the tensors out of the list."""
    if not 1 <= shards <= len(parameters):
        raise ValueError(f"cannot write {len(parameters)} tensors into {shards} files")
    parameters.reverse()
    done = 0
    for shard in range(1, shards + 1):
        group: list[tuple[str, mx.array]] = []
        while parameters and len(parameters) > shards - shard and (not group or done < total * shard / shards):
            done += parameters[-1][1].nbytes
            group.append(parameters.pop())
        yield group


def _write_safetensors(path: Path, group: list[tuple[str, mx.array]], seed: int) -> None:
    """Write the header from the shapes, then each tensor, dropping it from the group before the next is computed."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, value in group:
        start, end = end, end + value.nbytes
        header[name] = {"dtype": _TYPE_NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    # The format asks for data that starts at a multiple of eight.
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        group.reverse()
        while group:
            name, value = group.pop()
            file.write(memoryview(mx.contiguous(lively(name, value, seed)).reshape(-1).view(mx.uint8)))
