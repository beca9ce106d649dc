"""What extensions may rely on. Everything else in Chorus may change without notice.

Names that need MLX are looked up when they are first used, so that a package can be read where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chorus.models.architectures import Architecture, Heads, Inner, SummedBlock, TensorRule
from chorus.models.architectures import register as register_architecture
from chorus.planning.split import SplitError
from chorus.transport.catalog import Transport

if TYPE_CHECKING:
    from chorus.rank.pipeline.rules import Arguments, CacheMap, Call, Flow, PipelineRule, Span
    from chorus.transport.frames import decode as decode_frame
    from chorus.transport.frames import encode as encode_frame
    from chorus.transport.links import Inbox, Link, LinkLost, TokenPath, Traffic
    from chorus.transport.meeting import CannotJoin, Connection, Meeting

__all__ = [
    "Architecture",
    "Arguments",
    "CacheMap",
    "Call",
    "CannotJoin",
    "Connection",
    "Flow",
    "Heads",
    "Inbox",
    "Inner",
    "Link",
    "LinkLost",
    "Meeting",
    "PipelineRule",
    "Span",
    "SplitError",
    "SummedBlock",
    "TensorRule",
    "TokenPath",
    "Traffic",
    "Transport",
    "decode_frame",
    "encode_frame",
    "register_architecture",
]

_LATE = {
    **dict.fromkeys(("Arguments", "CacheMap", "Call", "Flow", "PipelineRule", "Span"), "chorus.rank.pipeline.rules:"),
    **dict.fromkeys(("Inbox", "Link", "LinkLost", "TokenPath", "Traffic"), "chorus.transport.links:"),
    **dict.fromkeys(("CannotJoin", "Connection", "Meeting"), "chorus.transport.meeting:"),
    "decode_frame": "chorus.transport.frames:decode",
    "encode_frame": "chorus.transport.frames:encode",
}
"""Where each name is that is not looked up before it is used, and what it is called there if not the same."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"chorus.extend has no {name}: see docs/new-architecture.md and docs/new-transport.md")
    module, _, there = _LATE[name].partition(":")
    return getattr(import_module(module), there or name)
