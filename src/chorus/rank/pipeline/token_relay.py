"""Sampled tokens on their way back from the leader to a pipeline's first stage, inside the graph.

Where tensors travel by a collective, the first stage builds the next forward before the token that it starts with is
sampled: nothing but the collective itself stands between two tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import mlx.core as mx

from chorus.messages.rank import Step
from chorus.rank.graph_tokens import GraphTokens


class TokenRelay:
    """Fetches sampled tokens from the leader as the first stage needs them."""

    def __init__(self, receive: Callable[[int], mx.array]) -> None:
        """`receive(count)` takes what the leader sent next: it sends once for every step that has logits."""
        self._receive = receive
        self._tokens = GraphTokens()
        self._coming: deque[Step] = deque()

    def of(self, step: Step) -> mx.array | None:
        """What to feed where the step itself does not say; None when it does for every sequence."""
        wanted = {feed.sequence for feed in step.feeds if not feed.tokens}
        # Not sooner than they are needed: whatever is sent after a receive waits for it.
        while any(wanted.intersection(coming.sequences) for coming in self._coming):
            sampled = self._coming.popleft()
            self._tokens.note(sampled, self._receive(len(sampled.feeds)))
        return self._tokens.of(step)

    def expect(self, step: Step) -> None:
        """Note that the leader will sample behind this step."""
        if step.logits:
            self._coming.append(step)


def placeholder(step: Step) -> mx.array | None:
    """Tokens for a stage that sees activations only: their shape is all it needs of them."""
    if all(feed.tokens for feed in step.feeds):
        return None
    return mx.zeros((len(step.feeds), 1), mx.int32)
