"""Streaming output parsers: a model's text in, in any cuts; content, reasoning and tool calls out."""

from chorus.text.parsers.family import ParserFamily
from chorus.text.parsers.pieces import (
    Content,
    OutputParser,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
    merged,
)
from chorus.text.parsers.registry import FAMILIES, choose

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
    "merged",
]
