"""Notes in which number types the layers of a rank compute, from inside its forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from chorus.rank import parallel
from chorus.rank.load import LoadedShard

Note = Callable[[str], None]


def keep_them(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The types that every shard loaded in this process computes in from now on."""
    seen: set[str] = set()
    monkeypatch.setattr(parallel, "load_shard", _recording(seen.add))
    return seen


def print_them() -> None:
    """The same in the output of a process of its own."""
    seen: set[str] = set()

    def say(kind: str) -> None:
        if kind not in seen:
            seen.add(kind)
            print(f"computes in {kind}", flush=True)

    parallel.load_shard = _recording(say)


def _recording(note: Note) -> Callable[..., LoadedShard]:
    load = parallel.load_shard

    def load_and_record(*args: Any, **kwargs: Any) -> LoadedShard:
        shard = load(*args, **kwargs)
        for layer in shard.stage.model.layers[shard.stage.first : shard.stage.last]:
            for part in (layer.self_attn, layer.self_attn.q_proj, layer.mlp, layer.mlp.down_proj):
                _record(part, note)
        return shard

    return load_and_record


def _record(module: nn.Module, note: Note) -> None:
    """Note what it takes and gives, and the keys and values that its cache holds then."""
    kind = type(module)

    def call(self: nn.Module, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        result = kind.__call__(self, x, *args, **kwargs)
        kept = [entry.keys for entry in (*args, *kwargs.values()) if getattr(entry, "keys", None) is not None]
        for array in (x, result, *kept):
            note(str(array.dtype).rpartition(".")[2])
        return result

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})
