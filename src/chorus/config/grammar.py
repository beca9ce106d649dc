"""How much a request's grammar may cost."""

from __future__ import annotations

from dataclasses import dataclass

TOGETHER = 4
"""All grammars together may take as much memory as this many of the largest."""


@dataclass(frozen=True)
class GrammarLimits:
    memory_mb: int = 256
    compile_seconds: float = 5.0
    mask_seconds: float = 0.5
    max_bytes: int = 1 << 20
