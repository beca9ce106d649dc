"""What an answer cost: its usage, and how fast it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chorus.serving.generation import AnswerEnd, Usage


@dataclass(frozen=True)
class Performance:
    """A rate that has no duration to be measured over is None: one token has no speed."""

    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    time_to_first_token_seconds: float | None
    queue_seconds: float
    cached_tokens: int
    """Of the prompt, those that were found stored and not computed."""
    stored_tokens: int
    """Of the prompt, those that were computed and are kept for the next request."""


@dataclass(frozen=True)
class Outcome:
    usage: Usage
    performance: Performance


def sum_up(ends: Sequence[AnswerEnd], first_token_seconds: float | None, per_prompt: int = 1) -> Outcome:
    """Of several choices the speed is that of the first: they ran side by side.

    A prompt counts once, however many answers it gets: the others find what the first of them has computed, so what
    was stored before is what each of them found.
    """
    ordered = sorted(ends, key=lambda end: end.choice)
    prompts = [ordered[place : place + per_prompt] for place in range(0, len(ordered), per_prompt)]
    usage = Usage(
        prompt_tokens=sum(same[0].usage.prompt_tokens for same in prompts),
        completion_tokens=sum(end.usage.completion_tokens for end in ordered),
        cached_tokens=sum(min(end.usage.cached_tokens for end in same) for same in prompts),
        reasoning_tokens=sum(end.usage.reasoning_tokens for end in ordered),
        stored_tokens=sum(max(end.usage.stored_tokens for end in same) for same in prompts),
    )
    return Outcome(usage, _measure(ordered[0], first_token_seconds))


def usage_body(usage: Usage) -> dict[str, Any]:
    """As OpenAI writes it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def performance_body(performance: Performance) -> dict[str, Any]:
    return asdict(performance)


def _measure(end: AnswerEnd, first_token_seconds: float | None) -> Performance:
    timing = end.timing
    return Performance(
        prompt_tokens_per_second=_rate(timing.prompt_tokens - timing.cached_tokens, timing.prompt_seconds),
        generation_tokens_per_second=_rate(timing.generated_tokens - 1, timing.generation_seconds),
        time_to_first_token_seconds=None if first_token_seconds is None else round(first_token_seconds, 6),
        queue_seconds=round(timing.queue_seconds, 6),
        cached_tokens=timing.cached_tokens,
        stored_tokens=timing.stored_tokens,
    )


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 3) if tokens > 0 and seconds > 0 else None
