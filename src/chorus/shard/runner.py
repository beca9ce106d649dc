"""Runs steps on one rank's layers and owns the caches of its sequences.

A sequence fills its prompt alone (or begins it beside others of the same length), then joins the batch that decodes
together. Every rank gets the same steps and so keeps the same batch, row for row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from chorus.shard import caches
from chorus.shard.pipeline import Stage
from chorus.shard.steps import Drop, Fork, Operation, Step

Cache = list[Any]


class Runner:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._alone: dict[int, Cache] = {}
        self._rows: list[int] = []
        self._batch: Cache = []
        self.cache_bytes_per_token = 0
        """What a token of a sequence costs this rank, seen at the first prompt that it ran."""
        self._merged = False
        """A batch of one keeps its single-sequence cache: no padding mask to build, the same operations as alone."""

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
        cache = self._decode_cache(list(step.sequences)) if step.decode else self._prompt_cache(step.sequences)
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
        return len(self._alone) + len(self._rows)

    @property
    def cache_bytes(self) -> int:
        return sum(map(caches.size_bytes, self._alone.values())) + caches.size_bytes(self._batch)

    def _operate(self, operation: Operation) -> None:
        match operation:
            case Drop(sequence):
                self._alone.pop(sequence, None)
                if sequence in self._rows:
                    self._keep([number for number in self._rows if number != sequence])
            case Fork(source, target, length):
                self._alone[target] = caches.fork(self._cache_of(source), length)

    def _prompt_cache(self, sequences: Sequence[int]) -> Cache:
        """Several sequences begin together in one cache, which nothing pads: all their rows are equally long."""
        if len(sequences) > 1:
            return self.stage.new_cache()
        if sequences[0] not in self._alone:
            self._alone[sequences[0]] = self.stage.new_cache()
        return self._alone[sequences[0]]

    def _cache_of(self, sequence: int) -> Cache:
        if sequence in self._alone:
            return self._alone[sequence]
        return caches.extract(self._batch, self._rows.index(sequence)) if self._merged else self._batch

    def _decode_cache(self, wanted: list[int]) -> Cache:
        """Make the batch hold exactly these sequences: rows that stay keep their order, new ones come last."""
        self._keep([number for number in self._rows if number in wanted])
        joining = wanted[len(self._rows) :]
        if self._rows + joining != wanted:
            raise ValueError(f"step changes the order of the batch from {self._rows} to {wanted}")
        if joining:
            self._join(joining)
        return self._batch

    def _keep(self, rows: list[int]) -> None:
        if rows == self._rows:
            return
        if not rows:
            self._batch, self._merged = [], False
        else:
            self._batch = caches.keep(self._batch, [self._rows.index(number) for number in rows])
        self._rows = rows

    def _join(self, joining: list[int]) -> None:
        arriving = [self._alone.pop(number) for number in joining]
        if not self._rows and len(arriving) == 1:
            self._batch = arriving[0]
        elif self._merged:
            self._batch = caches.extend(self._batch, caches.merge(arriving))
        else:
            # With nobody there yet or one unmerged sequence, all become rows at once.
            self._batch = caches.merge(([self._batch] if self._rows else []) + arriving)
            self._merged = True
        self._rows += joining
