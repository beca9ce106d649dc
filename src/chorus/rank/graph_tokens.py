"""Sampled tokens that are still inside the graph, for forwards that are built before anybody has read them."""

from __future__ import annotations

import mlx.core as mx

from chorus.messages.rank import Drop, Step


class GraphTokens:
    """The last token of every sequence, as the array in which it was sampled."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[mx.array, int]] = {}
        """Where a sequence's last token is: the sampled array and the row in it."""
        self._decoded: dict[int, tuple[tuple[int, ...], mx.array]] = {}
        """The sequences of each lane's last decode and their tokens, as long as nobody was sampled elsewhere since."""

    def of(self, step: Step) -> mx.array | None:
        """What to feed where the step itself does not say; None when it does for every sequence."""
        for operation in step.operations:
            if isinstance(operation, Drop):
                self._last.pop(operation.sequence, None)
        if step.recalls or all(feed.tokens for feed in step.feeds):
            return None
        sequences, decoded = self._decoded.get(step.lane, ((), None))
        if step.decode and decoded is not None and step.sequences == sequences and not _told(step):
            return decoded[:, None]
        parts = [self._last[feed.sequence] if not feed.tokens else (_array(feed.tokens), 0) for feed in step.feeds]
        first = parts[0][0]
        if len(first) == len(parts) and all(array is first and row == i for i, (array, row) in enumerate(parts)):
            return first[:, None]
        return mx.concatenate([array[row : row + 1] for array, row in parts])[:, None]

    def note(self, step: Step, tokens: mx.array) -> None:
        sequences = step.sequences
        self._last.update({number: (tokens, row) for row, number in enumerate(sequences)})
        if not step.decode or self._decoded.get(step.lane, ((),))[0] != sequences:
            # Somebody may have come from another lane, and may go back there.
            self._decoded.clear()
        if step.decode:
            self._decoded[step.lane] = sequences, tokens


def _told(step: Step) -> bool:
    return any(feed.tokens for feed in step.feeds)


def _array(tokens: tuple[int, ...]) -> mx.array:
    return mx.array(tokens, dtype=mx.uint32)
