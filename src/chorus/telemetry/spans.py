"""What a trace tells of a request, declared once: its spans and their attributes, by OpenTelemetry's conventions for
generative models.

Engines tell how long each part took and not when: clocks of several machines need not agree. Prompts, answers and what
else a client wrote are in no span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Attribute = str | int | float | bool | tuple[str, ...]
PROVIDER = "chorus"
OWN = "chorus."
"""What the conventions have no name for begins so."""


@dataclass(frozen=True)
class Span:
    """One part of a request, from a moment to a moment in seconds since the epoch."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parts: tuple[Span, ...] = ()


@dataclass(frozen=True)
class RankPart:
    """Who computed, and which layers of the model."""

    rank: int
    node: str
    host: str
    device: str
    first_layer: int
    last_layer: int
    """Which it holds, too."""


@dataclass(frozen=True)
class ChoiceTimes:
    """One answer of a request: when it ended here, and how long its parts took in the engine."""

    choice: int
    end: float
    queue_seconds: float
    prompt_seconds: float
    generation_seconds: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int


def request_attributes(
    operation: str, model: str, server: tuple[str, int], asked: Mapping[str, Attribute | None]
) -> dict[str, Attribute]:
    """What is known of a request when it comes; `asked` are parameters by their names in the conventions."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "server.address": server[0],
        "server.port": server[1],
        **{f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None},
    }


def answer_attributes(
    model: str,
    finish_reasons: Sequence[str],
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int,
    first_chunk_seconds: float | None,
) -> dict[str, Attribute]:
    first = {} if first_chunk_seconds is None else {"gen_ai.response.time_to_first_chunk": first_chunk_seconds}
    return {
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": tuple(finish_reasons),
        "gen_ai.usage.input_tokens": input_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        **first,
    }


def parts_of(times: ChoiceTimes, ranks: Sequence[RankPart], begin: float) -> tuple[Span, ...]:
    """Queue, prefill and decode of one answer, and each rank's part in it, none before its request."""
    decode = max(begin, times.end - times.generation_seconds)
    prefill = max(begin, decode - times.prompt_seconds)
    queued = max(begin, prefill - times.queue_seconds)
    which: dict[str, Attribute] = {f"{OWN}choice": times.choice}
    read = {
        "gen_ai.usage.input_tokens": times.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": times.cached_tokens,
    }
    return (
        Span("queue", queued, prefill, which),
        Span("prefill", prefill, decode, {**which, **read}),
        Span("decode", decode, times.end, {**which, "gen_ai.usage.output_tokens": times.output_tokens}),
        *(
            Span(
                f"rank {part.rank}",
                prefill,
                times.end,
                {
                    **which,
                    f"{OWN}rank": part.rank,
                    f"{OWN}node": part.node,
                    "host.name": part.host,
                    f"{OWN}device": part.device,
                    f"{OWN}first_layer": part.first_layer,
                    f"{OWN}last_layer": part.last_layer,
                },
            )
            for part in ranks
        ),
    )
