"""Runs steps on one rank's layers and owns the caches of its sequences.

A sequence fills its prompt alone (or begins it beside others of the same length), then joins a batch that decodes
together. Every rank gets the same steps and so keeps the same batches, row for row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from chorus.messages.rank import Drop, Feed, Operation, Step
from chorus.rank.cache import caches
from chorus.rank.cache.batch import Batch, known
from chorus.rank.pipeline.stage import Stage

Cache = list[Any]


class Runner:
    """Runs steps on one stage, with the caches of all sequences."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._alone: dict[int, Cache] = {}
        self._lanes: defaultdict[int, Batch] = defaultdict(Batch)
        self.cache_bytes_per_token = 0
        """What a token of a sequence costs this rank, seen at the first prompt that it ran."""

    def run(
        self, step: Step, tokens: mx.array | None = None, received: Sequence[mx.array] | None = None
    ) -> list[mx.array]:
        """Build the forward of a step. `tokens` replaces the step's own where they are still inside the graph."""
        for operation in step.operations:
            self._operate(operation)
        if not step.feeds:
            return []
        if tokens is None:
            tokens = mx.array([feed.tokens for feed in step.feeds], dtype=mx.int32)
        if step.decode:
            cache = self._lanes[step.lane].hold(step.sequences, self._alone)
        else:
            cache = self._prompt_cache(step.feeds)
        outputs = self.stage.forward(tokens, cache, received, logits=step.logits)
        if not self.cache_bytes_per_token and not step.decode:
            self.cache_bytes_per_token = caches.bytes_per_token(cache) // len(step.feeds)
        # The caches ride along, or the graph of a chunk whose logits nobody wants would pile up. They are not handed
        # out: somebody holding them would turn the next in-place update into a copy.
        mx.async_eval(outputs, caches.arrays(cache))
        if not step.decode and len(step.feeds) > 1:
            self._alone.update({number: caches.row(cache, row) for row, number in enumerate(step.sequences)})
        return outputs

    @property
    def sequences(self) -> int:
        return len(self._alone) + sum(len(batch.rows) for batch in self._lanes.values())

    @property
    def cache_bytes(self) -> int:
        batches = sum(batch.cache_bytes for batch in self._lanes.values())
        return sum(map(caches.size_bytes, self._alone.values())) + batches

    def _operate(self, operation: Operation) -> None:
        match operation:
            case Drop(sequence):
                self._alone.pop(sequence, None)
                for batch in self._lanes.values():
                    batch.drop(sequence)

    def _prompt_cache(self, feeds: Sequence[Feed]) -> Cache:
        """Several sequences begin together in one cache, which nothing pads: all their rows are equally long."""
        if len(feeds) > 1:
            return self.stage.new_cache()
        if feeds[0].begins:
            self._alone[feeds[0].sequence] = self.stage.new_cache()
        return known(self._alone, feeds[0].sequence)

    def _cache_of(self, sequence: int) -> Cache:
        if sequence in self._alone:
            return self._alone[sequence]
        holders = {row: batch for batch in self._lanes.values() for row in batch.rows}
        return known(holders, sequence).cache_of(sequence)
