"""The rounding rule: two runs may part only where the reference's two best candidates are nearly equal."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from chorus.engine.requests import Sampling
from chorus.engine.sampling import Draw, _filter, _noise
from chorus.shard.load import LoadedShard, load_shard

TOLERANCE = 1e-3


def load_reference(path: Path) -> LoadedShard:
    return load_shard(path, range)


def margin(reference: LoadedShard, tokens: list[int], sampling: Sampling) -> float:
    """How far apart the two best candidates for the token after `tokens` are, after seeded noise."""
    stage = reference.stage
    logits = stage.forward(mx.array([tokens]), stage.new_cache())[0].astype(mx.float32)
    if not sampling.greedy:
        draw = [Draw(sampling, len(tokens))]
        logits = _filter(logits / sampling.temperature, draw) + _noise(logits, draw)
    best = mx.sort(logits[0])[-2:].tolist()
    return float(best[1] - best[0])


def explain_difference(
    reference: LoadedShard, prompt: list[int], lone: list[int], other: list[int], sampling: Sampling
) -> str | None:
    """None when `other` equals `lone` or parts from it at a near tie; otherwise what is wrong."""
    if lone == other:
        return None
    at = next((i for i, (a, b) in enumerate(zip(lone, other, strict=False)) if a != b), min(len(lone), len(other)))
    gap = margin(reference, prompt + lone[:at], sampling)
    return None if gap < TOLERANCE else f"differs at token {at}, where the two best lie {gap:.2g} apart"
