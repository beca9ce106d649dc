"""How far a running request is, read when somebody asks: nothing is counted for it while tokens come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_LOOKS_KEPT = 16
_OLDEST_LOOK_SECONDS = 5.0
_LOOK_APART_SECONDS = 0.25


class Stage(StrEnum):
    QUEUED = "queued"
    """It is being prepared, or waits for its turn in the engine."""
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Standing:
    stage: Stage = Stage.QUEUED
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Of the prompt, found stored; None: the engine has not said."""
    generated_tokens: int = 0
    first_token: float | None = None
    """When it came, by the monotonic clock."""
    resumed: int = 0
    """How often it went on after a rank or its whole engine was lost."""


def together(standings: Sequence[Standing], per_prompt: int = 1) -> Standing:
    """Of several answers that were asked for at once. A prompt counts once, however many answers it gets."""
    prompts = [standings[place : place + per_prompt] for place in range(0, len(standings), per_prompt)]
    told = [[s.cached_tokens for s in same if s.cached_tokens is not None] for same in prompts]
    stages = {standing.stage for standing in standings}
    return Standing(
        next((stage for stage in (Stage.DECODE, Stage.PREFILL) if stage in stages), Stage.QUEUED),
        sum(same[0].prompt_tokens for same in prompts),
        sum(min(known) for known in told if known) if any(told) else None,
        sum(standing.generated_tokens for standing in standings),
        min((s.first_token for s in standings if s.first_token is not None), default=None),
        max(standing.resumed for standing in standings),
    )


class Pace:
    """Tokens per second now: since one of the last looks, or since the first token where nobody has looked lately."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS_KEPT)

    def look(self, now: float, standing: Standing) -> float | None:
        """None while there is nothing to measure."""
        tokens, first = standing.generated_tokens, standing.first_token
        if first is None:
            return None
        while self._looks and now - self._looks[0][0] > _OLDEST_LOOK_SECONDS:
            self._looks.popleft()
        since, counted = self._looks[0] if self._looks else (first, 1)
        if not self._looks or now - self._looks[-1][0] >= _LOOK_APART_SECONDS:
            self._looks.append((now, tokens))
        if now - since < _LOOK_APART_SECONDS:
            since, counted = first, 1
        return round((tokens - counted) / (now - since), 2) if tokens > 1 and now > since else None
