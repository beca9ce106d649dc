"""Which layer a stored tensor belongs to, and which files a run of layers needs."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """The layer in a tensor's stored name; None for embeddings, norms and heads."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def files_for_layers(mapping: Mapping[str, str], layers: range, total: int) -> list[str]:
    """The files a stage needs: its layers, and what is outside all layers where it is the first or the last stage.

    A tied head is the embedding again, so both ends take everything that is outside the layers.
    """
    edge = layers.start == 0 or layers.stop == total
    return sorted({file for name, file in mapping.items() if _needed(layer_of(name), layers, edge)})


def _needed(layer: int | None, layers: range, edge: bool) -> bool:
    return edge if layer is None else layer in layers
