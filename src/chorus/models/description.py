"""What a model's config.json says under one of several names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
CAUTIOUS_CONTEXT = 2048


def context_length(config: Mapping[str, Any]) -> int:
    """The longest sequence the model was made for; a cautious 2,048 where its configuration does not say."""
    inner = config.get("text_config")
    text = {**config, **(inner if isinstance(inner, dict) else {})}
    found = (text[key] for key in _CONTEXT_KEYS if isinstance(text.get(key), int) and text[key] > 0)
    return next(found, CAUTIOUS_CONTEXT)
