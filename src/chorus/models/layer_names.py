"""Which part of a decoder a stored tensor belongs to, told by its name.

Checkpoints name their tensors in a few ways only: a list of layers, an embedding before it, a norm and a head after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Place = Literal["before", "after", "around"]
"""Outside the layers: read before them, after them, or too small or too strange to say ("around": keep it anywhere)."""

_LAYER = re.compile(r"(?:^|\.)(?P<list>layers|h|blocks|block|kv_reuse_layers)\.(?P<index>\d+)\.")
_SECOND_LIST = "kv_reuse_layers"
_FOREIGN = re.compile(
    r"(?:^|\.)(?:embed_)?(?:vision|visual|audio|image|vit|speech|talker|mm_|multi_modal|mtp|connector)"
)
_HEAD = re.compile(
    r"(?:^|\.)(?:lm_head|lm_head_gain|embed_out|output|output_layer|head|ff_out|altup_unembed_projections)(?:\.|$)"
)
_EMBEDDING = re.compile(r"emb|(?:^|\.)(?:wte|wpe|embd|per_layer_model_projection|altup_projections)(?:\.|$)")


def is_foreign(name: str) -> bool:
    """Parts of a larger model that no text decoder reads: vision, audio, prediction heads."""
    layer = _LAYER.search(name)
    return bool(_FOREIGN.search(name[: layer.start()] if layer else name))


def layers_of_names(names: Iterable[str]) -> dict[str, int]:
    """The layer of each tensor that belongs to one; a second list of layers goes on where the first one ends."""
    found = {name: match for name in names if not is_foreign(name) and (match := _LAYER.search(name))}
    first = [int(match["index"]) for match in found.values() if match["list"] != _SECOND_LIST]
    own = max(first, default=-1) + 1
    return {name: int(match["index"]) + (own if match["list"] == _SECOND_LIST else 0) for name, match in found.items()}


def place_of(name: str, dimensions: int) -> Place:
    """Of a tensor outside the layers. Vectors (norms, biases) are kept on both ends: they cost nothing."""
    if dimensions < 2:
        return "around"
    if _HEAD.search(name):
        return "after"
    return "before" if _EMBEDDING.search(name) else "around"


def is_tied(config: Mapping[str, object], names: Iterable[str]) -> bool:
    """Whether the head is the embedding, used again."""
    text = config.get("text_config")
    given = config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    if given is not None and bool(given):
        return True
    layers = layers_of_names(names := list(names))
    return not any(_HEAD.search(name) for name in names if name not in layers and not is_foreign(name))
