"""What a request took, also where several engines worked on it."""

from __future__ import annotations

import time
from dataclasses import replace

from chorus.messages.engine import Timing


class Times:
    """Of one request. Where several engines worked on it, whoever waited for it has seen all of them."""

    def __init__(self) -> None:
        self._submits = 0
        self._asked = 0.0
        """When the first engine was."""
        self._waited = 0.0
        """From then until the engine was asked that works on it now."""
        self.first_token: float | None = None
        self._before: Timing | None = None
        """Of the engine that brought the first token, as it was then."""
        self.cached: int | None = None
        """Of the prompt, what every engine that has read it found stored."""

    def submit(self) -> None:
        now = time.monotonic()
        self._asked = self._asked or now
        self._waited = now - self._asked
        self._submits += 1

    @property
    def resumed(self) -> int:
        """How often another engine went on with it."""
        return max(self._submits - 1, 0)

    def begin(self) -> None:
        """The first token is here."""
        self.first_token = time.monotonic()

    def told(self, timing: Timing) -> Timing:
        """An engine's own times, or what they are together with those of the engines before it."""
        self.cached = timing.cached_tokens if self.cached is None else min(self.cached, timing.cached_tokens)
        if self._before is None:
            self._before = replace(timing, queue_seconds=self._waited + timing.queue_seconds)
        if self._submits < 2:
            return timing
        return self._joined(timing)

    def so_far(self, generated_tokens: int) -> Timing | None:
        """For a request that ends by itself."""
        return self._before and replace(self._joined(self._before), generated_tokens=generated_tokens)

    def _joined(self, last: Timing) -> Timing:
        assert self._before is not None
        return replace(
            last,
            queue_seconds=self._before.queue_seconds,
            prompt_seconds=self._before.prompt_seconds,
            generation_seconds=time.monotonic() - self.first_token if self.first_token else 0.0,
            cached_tokens=self.cached or 0,
        )
