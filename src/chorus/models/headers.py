"""What tells one model from another, read without its weights: its configuration, the headers of its tensors, samples.

Ranks that were started by hand each have the model themselves; by this they know whether theirs is their leader's.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chorus.models.errors import ModelError
from chorus.models.preshard.folder import PLAN_FILE, is_preshard
from chorus.models.tensors import TensorInfo, read_json, tensor_index

MAX_BYTES = 32 << 20
"""Of what another machine says of its model, once unpacked: some 400,000 tensors."""
SAMPLES = 16
SAMPLE_BYTES = 4096

_NO_DIFFERENCE = ("transformers_version",)
"""Besides those that begin with an underscore: keys of a configuration that change with whoever wrote it."""
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class ModelHeaders:
    """A model as its headers show it."""

    config: Mapping[str, Any]
    tensors: Mapping[str, str]
    """Type and shape of each, by name."""
    samples: Mapping[str, str]
    """Digests of some bytes of a few tensors: two models of one architecture have the same headers."""

    def packed(self) -> bytes:
        return zlib.compress(json.dumps(asdict(self), sort_keys=True).encode())

    @classmethod
    def unpacked(cls, data: bytes) -> ModelHeaders:
        """What another machine packed; raises ModelError where it is nothing of the kind."""
        try:
            reader = zlib.decompressobj()
            text = reader.decompress(data, MAX_BYTES)
            if not reader.eof:
                raise ValueError("too long, or cut off")
            said = json.loads(text)
            config, tensors, samples = said["config"], said["tensors"], said["samples"]
            if not all(isinstance(part, dict) for part in (config, tensors, samples)):
                raise ValueError("no mapping")
            if not all(isinstance(value, str) for part in (tensors, samples) for value in part.values()):
                raise ValueError("no text")
        except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(
                f"rank 0 does not say what its model is like ({error}); use the same Chorus on all."
            ) from None
        return cls(config, tensors, samples)

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def read_headers(folder: Path) -> ModelHeaders:
    """Of a presharded model, whose weights may be on several machines, what it was made from and for whom."""
    if is_preshard(folder):
        plan = read_json(folder / PLAN_FILE)
        return ModelHeaders({PLAN_FILE: {key: value for key, value in plan.items() if key != "rank"}}, {}, {})
    index = tensor_index(folder)
    names = sorted(index)
    sampled = {names[number * (len(names) - 1) // max(1, SAMPLES - 1)] for number in range(SAMPLES)} if names else set()
    return ModelHeaders(
        config={key: value for key, value in read_json(folder / "config.json").items() if _matters(key)},
        tensors={name: f"{info.dtype} {list(info.shape)}" for name, info in index.items()},
        samples={name: _sample(index[name]) for name in sorted(sampled)},
    )


def difference(here: ModelHeaders, there: ModelHeaders) -> str | None:
    """The first thing by which two models differ, in words; None where they are the same."""
    for key in sorted({*here.config, *there.config}):
        ours, theirs = _text(here, key), _text(there, key)
        if ours != theirs:
            return f"config.json has {_shown(key)} {_shown(ours)} here and {_shown(theirs)} there"
    for name in sorted({*here.tensors, *there.tensors}):
        if name not in there.tensors:
            return f"tensor {_shown(name)} is here and not there"
        if name not in here.tensors:
            return f"tensor {_shown(name)} is there and not here"
        if here.tensors[name] != there.tensors[name]:
            return f"tensor {_shown(name)} is {here.tensors[name]} here and {_shown(there.tensors[name])} there"
    changed = next((name for name in here.samples if there.samples.get(name) != here.samples[name]), None)
    return None if changed is None else f"tensor {_shown(changed)} has other values here than there"


def _matters(key: str) -> bool:
    return not key.startswith("_") and key not in _NO_DIFFERENCE


def _sample(info: TensorInfo) -> str:
    """From the middle: the rows at the ends may be padding."""
    with info.file.open("rb") as stream:
        stream.seek(info.start + max(0, info.nbytes - SAMPLE_BYTES) // 2)
        return hashlib.sha256(stream.read(min(SAMPLE_BYTES, info.nbytes))).hexdigest()[:16]


def _text(model: ModelHeaders, key: str) -> str:
    return json.dumps(model.config[key], sort_keys=True) if key in model.config else "nothing"


def _shown(text: str) -> str:
    """Somebody else's words in a message: short, and without anything that a terminal would obey."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= _LONGEST_SHOWN else f"{plain[: _LONGEST_SHOWN - 3]}..."
