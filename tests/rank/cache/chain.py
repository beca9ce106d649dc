"""The stages of a tiny model in one process, driven step by step as the ranks of a pipeline are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import mlx.core as mx

from chorus.messages.rank import Feed, Operation, Step
from chorus.rank.cache.store import Keeping
from chorus.rank.pipeline.stage import Stage, layer_count
from chorus.rank.runner import Runner
from tests.support.architectures import build

KINDS = {
    "plain": "llama",
    "rotating": "gemma3_text",
    "chunked": "llama4",
    "recurrent": "mamba",
    "hybrid": "falcon_h1",
    "hybrid with windows": "gear",
}
STAGES = {"whole": (), "two stages": (3,)}
"""Where stages begin."""


class Chain:
    """Runs a step on every stage in turn."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.runners = [Runner(stage) for stage in stages]
        self._steps = 0

    @property
    def keeping(self) -> Keeping:
        (same,) = {runner.keeping for runner in self.runners}
        return same

    @property
    def stored_bytes(self) -> int:
        return sum(runner.stored_bytes for runner in self.runners)

    def operate(self, *operations: Operation) -> None:
        self.run(operations)

    def feed(self, sequence: int, tokens: Sequence[int], begins: bool = False) -> mx.array:
        return self.run((), [Feed(sequence, tuple(tokens), begins=begins)])

    def run(
        self, operations: Sequence[Operation] = (), feeds: Sequence[Feed] = (), decode: bool = False, lane: int = 0
    ) -> mx.array:
        """The logits of the last token of every feed."""
        self._steps += 1
        step = Step(self._steps, tuple(operations), tuple(feeds), decode, logits=True, lane=lane)
        passed: list[mx.array] | None = None
        for runner in self.runners:
            passed = runner.run(step, None, passed)
        return passed[0] if passed else mx.zeros((0,))


@cache
def _stages(architecture: str, edges: tuple[int, ...]) -> list[Stage]:
    bounds = (0, *edges, layer_count(build(architecture)))
    return [Stage(build(architecture), first, last) for first, last in pairwise(bounds)]


def chain(architecture: str, edges: tuple[int, ...] = ()) -> Chain:
    return Chain(_stages(architecture, edges))
