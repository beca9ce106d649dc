"""What a conversation gave, and where the whole model's is kept: one reference serves every division of that model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from tests.rank.tensor.cases import Case


@dataclass
class Spoken:
    """Logits that one forward gave, a row for each sequence."""

    sequences: tuple[int, ...]
    logits: mx.array


def is_free(case: Case) -> bool:
    """Whether the model's own tokens are fed back: only where rounding would not send two runs apart."""
    return case.format == "float32" and case.fault is None


def reference_file(folder: Path, case: Case) -> Path:
    """Named by all that the whole model's conversation depends on."""
    key = json.dumps([case.config, case.format, case.group_size, is_free(case)], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"


def save(file: Path, spoken: list[Spoken]) -> None:
    metadata = {"sequences": json.dumps([one.sequences for one in spoken])}
    mx.save_safetensors(str(file), {str(number): one.logits for number, one in enumerate(spoken)}, metadata)


def load(file: Path) -> list[Spoken]:
    arrays, metadata = mx.load(str(file), return_metadata=True)
    sequences = json.loads(metadata["sequences"])
    return [Spoken(tuple(those), arrays[str(number)]) for number, those in enumerate(sequences)]
