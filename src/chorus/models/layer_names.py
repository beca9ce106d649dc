"""Which part of a decoder a stored tensor belongs to, told by its name.

Checkpoints name their tensors in a few ways only: a list of layers, an embedding before it, a norm and a head after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Place = Literal["before", "after", "around"]
"""Outside the layers: read before them, after them, or too small or too strange to say ("around": keep it anywhere)."""

_LAYER = re.compile(r"(?:^|\.)(?P<list>layers|h|blocks|block|kv_reuse_layers)\.(?P<index>\d+)\.")
_SECOND_LIST = "kv_reuse_layers"
_COUNT_KEYS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_transformer_layers")
_FOREIGN = re.compile(
    r"(?:^|\.)(?:embed_)?(?:vision|visual|audio|image|vit|speech|talker|mm_|multi_modal|mtp|connector)"
)
_HEAD = re.compile(
    r"(?:^|\.)(?:lm_head|lm_head_gain|embed_out|output|output_layer|head|ff_out|altup_unembed_projections)(?:\.|$)"
)
_TOKENS = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|token_embeddings|embeddings|embedding|embed|embed_in)"
    r"\.(?:weight|scales|biases)$"
)
_EMBEDDING = re.compile(r"emb|(?:^|\.)(?:wte|wpe|embd|per_layer_model_projection|altup_projections)(?:\.|$)")


def is_foreign(name: str) -> bool:
    """Whether a tensor is part of what no text decoder reads: vision, audio, prediction heads."""
    layer = _LAYER.search(name)
    return bool(_FOREIGN.search(name[: layer.start()] if layer else name))


def layers_of_names(names: Iterable[str]) -> dict[str, int]:
    """The layer of each tensor that belongs to one; a second list of layers goes on where the first one ends."""
    found = {name: match for name in names if not is_foreign(name) and (match := _LAYER.search(name))}
    first = [int(match["index"]) for match in found.values() if match["list"] != _SECOND_LIST]
    own = max(first, default=-1) + 1
    return {name: int(match["index"]) + (own if match["list"] == _SECOND_LIST else 0) for name, match in found.items()}


def files_for_layers(mapping: Mapping[str, str], layers: range, total: int) -> list[str]:
    """The files a stage needs: its layers, and what is outside all layers where it is the first or the last stage.

    `mapping` is tensor name to file name. A tied head is the embedding again, so both ends take everything that is
    outside the layers.
    """
    edge = layers.start == 0 or layers.stop == total
    indices = layers_of_names(mapping)
    return sorted({file for name, file in mapping.items() if (indices[name] in layers if name in indices else edge)})


def layer_count(config: Mapping[str, Any], layers: Mapping[str, int]) -> int:
    """How many layers the decoder has. Those stored beyond the declared number (prediction heads) are never loaded."""
    stored = max(layers.values(), default=-1) + 1
    text = config.get("text_config")
    parts = (text if isinstance(text, dict) else {}, config)
    declared = next((part[key] for part in parts for key in _COUNT_KEYS if isinstance(part.get(key), int)), stored)
    pattern = config.get("hybrid_override_pattern")  # one entry per layer, whatever the number beside it says
    return min(stored, len(pattern) if pattern else declared)


def place_of(name: str, dimensions: int) -> Place:
    """Where a tensor outside the layers belongs. Vectors (norms, biases) are kept on both ends: they cost nothing."""
    if dimensions < 2:
        return "around"
    if _HEAD.search(name):
        return "after"
    return "before" if _EMBEDDING.search(name) else "around"


def embeds_tokens(name: str) -> bool:
    """Whether this is the table that a tied head uses again; positions and per-layer tables are not."""
    return bool(_TOKENS.search(name))


def is_tied(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether the head is the embedding, used again."""
    text = config.get("text_config")
    said = (part.get("tie_word_embeddings") for part in (config, text) if isinstance(part, Mapping))
    if next((given for given in said if given is not None), False):
        return True
    layers = layers_of_names(names := list(names))
    outside = (name for name in names if name not in layers and not is_foreign(name))
    return not any(_HEAD.search(name) and "altup" not in name for name in outside)
