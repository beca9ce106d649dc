"""Runs steps on one rank's layers and owns the caches of its sequences.

A sequence fills its prompt alone (or beside others that are equally long), then joins a batch that decodes together.
It may begin with what others have computed, and leave what it has for those to come. Every rank gets the same steps
and so keeps the same batches, row for row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

import mlx.core as mx

from chorus.messages.rank import (
    Drop,
    Erase,
    Evict,
    Feed,
    Fork,
    Keeping,
    Leave,
    Operation,
    Restore,
    Save,
    Split,
    Step,
    Store,
)
from chorus.platform.accelerator import device
from chorus.rank.cache import caches
from chorus.rank.cache.batch import Batch, known
from chorus.rank.cache.caches import CacheError
from chorus.rank.cache.disk import Disk, NoDisk
from chorus.rank.cache.store import SegmentStore, keeping, stack, state_bytes
from chorus.rank.pipeline.stage import Stage

Cache = list[Any]

SMALL_COPY = 32 << 20
"""Bytes that a CPU copies in a few milliseconds."""


class Runner:
    """Runs steps on one stage, with the caches of all sequences."""

    def __init__(self, stage: Stage, disk: Disk | None = None) -> None:
        self.stage = stage
        self.disk = disk or NoDisk()
        self._alone: dict[int, Cache] = {}
        self._lanes: defaultdict[int, Batch] = defaultdict(Batch)
        self._store = SegmentStore()
        self.cache_bytes_per_token = self.state_bytes = self.growing_layers = 0
        """What a token of a sequence costs this rank, what its windows and recurrent states take at most, and how many
        layers keep something of every token; seen at the first prompt that it ran.
        """

    def run(
        self, step: Step, tokens: mx.array | None = None, received: Sequence[mx.array] | None = None
    ) -> list[mx.array]:
        """Build the forward of a step. `tokens` replaces the step's own where they are still inside the graph."""
        dropped = {operation.sequence for operation in step.operations if isinstance(operation, Drop)}
        if step.operations:
            fed = {feed.sequence: max(1, len(feed.tokens)) for feed in step.feeds}
            leaving = dropped | (set(self._lanes[step.lane].rows) - set(step.sequences) if step.decode else set())
            for operation in step.operations:
                self._operate(operation, fed, leaving)
        for number, batch in self._lanes.items():
            if dropped and not (step.decode and number == step.lane):
                batch.drop(dropped)
        if not step.feeds or step.recalls:
            return []
        if tokens is None:
            tokens = mx.array([feed.tokens for feed in step.feeds], dtype=mx.int32)
        if step.decode:
            cache = self._lanes[step.lane].hold(step.sequences, self._alone, dropped)
        else:
            cache = self._prompt_cache(step.feeds)
        outputs = self.stage.forward(tokens, cache, received, logits=step.logits)
        if not step.decode and not self.cache_bytes_per_token + self.state_bytes:
            self.cache_bytes_per_token = caches.bytes_per_token(cache) // len(step.feeds)
            self.state_bytes = state_bytes(cache) // len(step.feeds)
            self.growing_layers = caches.growing_layers(cache)
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

    @property
    def stored_bytes(self) -> int:
        return self._store.nbytes

    @property
    def keeping(self) -> Keeping:
        """What may be stored of this model's sequences."""
        return keeping(self.stage.new_cache(), self.stage.names)

    def _operate(self, operation: Operation, fed: Mapping[int, int], leaving: Set[int]) -> None:
        """`fed` says how many tokens follow at once for which sequences, `leaving` who goes with this step."""
        match operation:
            case Drop(sequence):
                self._alone.pop(sequence, None)
            case Leave(sequence):
                # Who has not decoded yet is in no batch.
                if sequence not in self._alone:
                    self._alone[sequence] = self._batch_of(sequence).part_with(sequence)
            case Store(sequence, segment, start, stop, state):
                wait = sequence not in leaving and self._waits_for_copy(sequence, stop - start)
                self._store.take(segment, self._cache_of(sequence), start, stop, state, wait)
            case Fork(sequence, parts):
                cache = self._store.join(parts, self.stage.new_cache(), fed.get(sequence, 1))
                if sequence not in fed:
                    # Until it is computed it would hold the segments, even those that are evicted meanwhile.
                    mx.eval(caches.arrays(cache))
                self._alone[sequence] = cache
            case Split(segment, at, rest):
                self._store.split(segment, at, rest)
            case Evict(segment):
                self._store.evict(segment)
            case Save(segment, key):
                self.disk.save(key, self._store.segment(segment))
            case Restore(segment, key):
                if found := self.disk.restore(key):
                    self._store.put(segment, found)
            case Erase(key):
                self.disk.erase(key)

    def _waits_for_copy(self, sequence: int, tokens: int) -> bool:
        """Whether what is taken from a sequence that goes on must be copied before its next write, which would copy the
        whole source otherwise. Of one sequence that costs less than waiting for all that was begun before: on a GPU
        always, on a CPU if it is small.
        """
        if sequence not in self._alone:
            return True
        return device.backend() == "cpu" and tokens * self.cache_bytes_per_token > SMALL_COPY

    def _prompt_cache(self, feeds: Sequence[Feed]) -> Cache:
        """Several sequences run side by side in one cache, which nothing pads: all their rows are equally long."""
        fresh = [feed for feed in feeds if feed.begins]
        if len(feeds) == 1:
            if fresh:
                self._alone[feeds[0].sequence] = self.stage.new_cache()
            return known(self._alone, feeds[0].sequence)
        if not fresh:
            rows = [known(self._alone, feed.sequence) for feed in feeds]
            return stack(rows, self.stage.new_cache(), len(feeds[0].tokens))
        if len(fresh) != len(feeds):
            raise CacheError("sequences that begin cannot run beside others that go on: they are not equally long")
        return self.stage.new_cache()

    def _cache_of(self, sequence: int) -> Cache:
        if sequence in self._alone:
            return self._alone[sequence]
        return self._batch_of(sequence).cache_of(sequence)

    def _batch_of(self, sequence: int) -> Batch:
        holders = {row: batch for batch in self._lanes.values() for row in batch.rows}
        return known(holders, sequence)
