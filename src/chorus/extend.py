"""What extensions may rely on. Everything else in Chorus may change without notice.

Names that need MLX are looked up when they are first used, so that a package can be read where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chorus.models.architectures import Architecture, Heads, Inner, SummedBlock, TensorRule
from chorus.models.architectures import register as register_architecture
from chorus.planning.split import SplitError

if TYPE_CHECKING:
    from chorus.rank.pipeline.rules import Arguments, CacheMap, Call, Flow, PipelineRule, Span

__all__ = [
    "Architecture",
    "Arguments",
    "CacheMap",
    "Call",
    "Flow",
    "Heads",
    "Inner",
    "PipelineRule",
    "Span",
    "SplitError",
    "SummedBlock",
    "TensorRule",
    "register_architecture",
]

_NEED_MLX = dict.fromkeys(
    ("Arguments", "CacheMap", "Call", "Flow", "PipelineRule", "Span"), "chorus.rank.pipeline.rules"
)
"""Where each name is that is not looked up before it is used."""


def __getattr__(name: str) -> Any:
    if name in _NEED_MLX:
        return getattr(import_module(_NEED_MLX[name]), name)
    raise AttributeError(f"chorus.extend has no {name}: see docs/new-architecture.md for what it has")
