"""A sequence goes from one batch into another and answers as if it had never moved."""

from __future__ import annotations

import pytest

from chorus.messages.rank import Drop, Feed, Leave, Operation
from chorus.rank.cache.batch import UnknownSequence
from tests.rank.cache.chain import KINDS, STAGES, Chain, chain
from tests.support.architectures import VOCABULARY
from tests.support.architectures.facts import difference

ROUNDING = 1e-4
BATCHABLE = [kind for kind in KINDS if kind != "chunked"]


def prompt(sequence: int, size: int) -> list[int]:
    return [(7 * sequence + 3 * i) % VOCABULARY for i in range(size)]


class Streams:
    """Sequences that decode in lanes, and each once more alone."""

    def __init__(self, model: Chain, alone: Chain) -> None:
        self.worst = 0.0
        self._model, self._alone = model, alone

    def begin(self, *sizes: int) -> None:
        for sequence, size in enumerate(sizes, 1):
            for chained in (self._model, self._alone):
                chained.feed(sequence, prompt(sequence, size), begins=True)

    def decode(self, lane: int, *sequences: int, operations: tuple[Operation, ...] = ()) -> None:
        token = 5 + lane
        logits = self._model.run(operations, [Feed(number, (token,)) for number in sequences], decode=True, lane=lane)
        for row, number in enumerate(sequences):
            expected = self._alone.feed(number, [token])
            self.worst = max(self.worst, difference(logits[row : row + 1], expected))


@pytest.mark.parametrize("edges", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("kind", BATCHABLE)
def test_a_row_goes_on_in_another_batch(kind: str, edges: tuple[int, ...]) -> None:
    streams = Streams(chain(KINDS[kind], edges), chain(KINDS[kind]))
    streams.begin(9, 14, 3, 20)
    for _ in range(3):
        streams.decode(0, 1, 2, 3)
        streams.decode(1, 4)
    # Into a batch of one, which becomes two; then out of two, so that one is left; then the last one of all.
    streams.decode(1, 4, 2, operations=(Leave(2),))
    streams.decode(0, 1, 3)
    streams.decode(1, 4, 2, 3, operations=(Leave(3),))
    streams.decode(0, 1)
    streams.decode(1, 4, 2, 3, 1, operations=(Leave(1),))
    streams.decode(0, 3, 4, operations=(Leave(3), Leave(4)))
    streams.decode(1, 2, 1)
    assert streams.worst < ROUNDING


def test_who_is_in_no_batch_yet_need_not_leave_one_and_who_left_may_end() -> None:
    model = chain(KINDS["plain"], STAGES["two stages"])
    streams = Streams(model, chain(KINDS["plain"]))
    streams.begin(4, 6, 8)
    streams.decode(0, 1, 2, operations=(Leave(2),))
    streams.decode(0, 1, operations=(Leave(2),))
    model.operate(Drop(2))
    streams.decode(0, 1, 3, operations=(Leave(3),))
    assert streams.worst < ROUNDING
    assert [runner.sequences for runner in model.runners] == [2, 2]
    with pytest.raises(UnknownSequence):
        model.operate(Leave(2))
