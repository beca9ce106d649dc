"""Streaming output parsers: a model's text in, in any cuts; content, reasoning and tool calls out."""

from chorus.text.parsers.registry import FAMILIES, choose, is_known
from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.pieces import (
    Content,
    OutputParser,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
    merged,
)

__all__ = [
    "FAMILIES",
    "Content",
    "OutputParser",
    "ParserFamily",
    "Piece",
    "Reasoning",
    "ToolCallArguments",
    "ToolCallStart",
    "choose",
    "is_known",
    "merged",
]
