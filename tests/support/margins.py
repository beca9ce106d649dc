"""The rounding rule: two runs may part only where the reference's two best candidates are nearly equal."""

from __future__ import annotations

import functools
from pathlib import Path

import mlx.core as mx

from chorus.engine.sampling import Draw, preferences
from chorus.messages.engine import Sampling
from chorus.rank.load import LoadedShard, load_shard
from chorus.rank.pipeline.stage import Stage

TOLERANCE = 1e-3
PACKED_TOLERANCE = 0.5
"""Where a CPU multiplies packed weights: what moves by a millionth may be rounded to another integer, and layers later
all integers are others. SmolLM2, a prompt read at once against token by token: margins move by 0.07 (median) to 0.3.
"""


class Reference:
    """The model in one piece, loaded when two runs first part: most never do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @functools.cached_property
    def shard(self) -> LoadedShard:
        return load_shard(self._path, range)

    @property
    def stage(self) -> Stage:
        return self.shard.stage

    @property
    def tolerance(self) -> float:
        """How far apart two candidates are that rounding may choose either of."""
        return PACKED_TOLERANCE if self.shard.policy.packed else TOLERANCE


def load_reference(path: Path) -> Reference:
    return Reference(path)


def margin(reference: Reference, tokens: list[int], sampling: Sampling) -> float:
    """How far apart the two best candidates for the token after `tokens` are, after seeded noise."""
    stage = reference.stage
    logits = preferences(stage.forward(mx.array([tokens]), stage.new_cache())[0], [Draw(sampling, len(tokens))])
    best = mx.sort(logits[0])[-2:].tolist()
    return float(best[1] - best[0])


def explain_difference(
    reference: Reference, prompt: list[int], lone: list[int], other: list[int], sampling: Sampling
) -> str | None:
    """None when `other` equals `lone` or parts from it at a near tie; otherwise what is wrong."""
    if lone == other:
        return None
    at = next((i for i, (a, b) in enumerate(zip(lone, other, strict=False)) if a != b), min(len(lone), len(other)))
    gap = margin(reference, prompt + lone[:at], sampling)
    return None if gap < reference.tolerance else f"differs at token {at}, where the two best lie {gap:.2g} apart"


def furthest_from_best(reference: Reference, prompt: list[int], answered: list[int]) -> float:
    """How far the worst token of a greedy answer lies below the best, when the reference is fed what was answered."""
    stage = reference.stage
    cache = stage.new_cache()
    worst, fed = 0.0, prompt
    for token in answered:
        logits = stage.forward(mx.array([fed]), cache)[0][0].astype(mx.float32)
        worst = max(worst, (mx.max(logits) - logits[token]).item())
        fed = [token]
    return worst
