"""Whether a model is meant for embeddings, and how its files say that they are made."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorus.errors import ChorusError
from chorus.messages.engine import Pooling

_MODULES = ("Transformer", "Pooling", "Normalize")
_KNOWN = f"{', '.join(_MODULES[:-1])} and {_MODULES[-1]}"


class NoEmbeddings(ChorusError):
    """The message says why this model has none, and what to do."""


@dataclass(frozen=True)
class Embedding:
    pooling: Pooling
    normalized: bool


def embedding_of(model: Path, wanted: bool | None, pooling: str | None = None) -> Embedding:
    """Sentence-transformers' files say it all; without them only the owner's word makes a model one for embeddings.
    The owner's word on pooling goes over the files'."""
    modules = _read_json(model / "modules.json")
    if wanted is False:
        raise NoEmbeddings("embeddings are switched off in this server's settings")
    if not isinstance(modules, list):
        if wanted:
            return Embedding(Pooling(pooling or Pooling.LAST), normalized=True)
        raise NoEmbeddings(
            "the served model is not meant for embeddings: its folder has no modules.json "
            "(if it is all the same, set api.embeddings: true)"
        )
    kinds = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    if more := [kind for kind in kinds if kind not in _MODULES]:
        raise NoEmbeddings(f"the served model's modules.json asks for {more[0]}, and only {_KNOWN} are supported")
    chosen = Pooling(pooling) if pooling else _pooling(_read_json(model / kinds.get("Pooling", "") / "config.json"))
    return Embedding(chosen, "Normalize" in kinds)


def finish(values: Sequence[float], embedding: Embedding, dimensions: int | None) -> list[float]:
    """Fewer dimensions mean the first ones, brought back to length one: that is how models are trained for it."""
    kept = list(values if dimensions is None else values[:dimensions])
    if not embedding.normalized and dimensions is None:
        return kept
    length = math.sqrt(sum(value * value for value in kept))
    return [value / length for value in kept] if length else kept


def _pooling(config: Any) -> Pooling:
    settings = config if isinstance(config, dict) else {}
    if settings.get("pooling_mode_lasttoken"):
        return Pooling.LAST
    if settings.get("pooling_mode_mean_tokens", True):
        return Pooling.MEAN
    named = next((name for name, chosen in settings.items() if name.startswith("pooling_mode") and chosen), "unknown")
    raise NoEmbeddings(f"the served model asks for {named}, and only the mean and the last token are supported")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NoEmbeddings(f"{file.name} cannot be read ({error})") from None
