"""Who asks for what, drawn from a seed, and how often a server without a plan would load for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.many.models import PROMPTS


@dataclass(frozen=True)
class Ask:
    model: str
    prompt: str
    stream: bool


def drawn(seed: int, requests: int, names: Sequence[str]) -> list[Ask]:
    draw = random.Random(seed)
    return [Ask(draw.choice(list(names)), draw.choice(PROMPTS), draw.random() < 0.5) for _ in range(requests)]


def loads_in_order(arrived: Sequence[str], fit: int) -> int:
    """Loads of a server that answers strictly in the order of arrival and unloads what was used longest ago."""
    loaded: list[str] = []
    loads = 0
    for name in arrived:
        if name in loaded:
            loaded.remove(name)
        else:
            loads += 1
            del loaded[: max(0, len(loaded) - fit + 1)]
        loaded.append(name)
    return loads
