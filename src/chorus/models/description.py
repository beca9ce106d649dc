"""What a model's config.json says under one of several names. A null says nothing, as where the key is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
CAUTIOUS_CONTEXT = 2048


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the decoder: its own part over what stands around it."""
    inner = config.get("text_config")
    parts = (config, inner if isinstance(inner, dict) else {})
    return {key: value for part in parts for key, value in part.items() if value is not None}


def stated_context(config: Mapping[str, Any]) -> int | None:
    """The longest sequence the model was made for; None where its configuration does not say."""
    text = text_config(config)
    numbers = (_whole_number(text.get(key)) for key in _CONTEXT_KEYS)
    return next((number for number in numbers if number and number > 0), None)


def context_length(config: Mapping[str, Any], asked: int | None = None) -> int:
    """The longest sequence to serve: what was asked for, within what the model was made for. Where its configuration
    does not say that, anybody's word counts, and without one a cautious 2,048.
    """
    stated = stated_context(config)
    if stated is None:
        return asked or CAUTIOUS_CONTEXT
    return min(asked or stated, stated)


def vocabulary(config: Mapping[str, Any]) -> int:
    """How many token ids there are; 0 where the configuration does not say."""
    return _whole_number(text_config(config).get("vocab_size")) or 0


def _whole_number(value: object) -> int | None:
    """JSON has one kind of number, and some programs write 4096.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)
