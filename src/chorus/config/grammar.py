"""How much a request's grammar may cost.

It stands apart from the sections because the process that follows grammars starts without pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass

TOGETHER = 4
"""All grammars together may take as much memory as this many of the largest."""


@dataclass(frozen=True)
class GrammarLimits:
    """What the grammar of one request may take; `EngineOptions` has the settings that they come from."""

    memory_mb: int = 256
    compile_seconds: float = 5.0
    mask_seconds: float = 0.5
    max_bytes: int = 1 << 20
