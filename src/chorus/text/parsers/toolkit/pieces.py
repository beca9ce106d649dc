"""What a parser gives out, and the one interface that every parser has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """A piece of the JSON arguments of call `index`; joined, the pieces of a finished call are one JSON value."""

    index: int
    text: str


Piece = Content | Reasoning | ToolCallStart | ToolCallArguments


class OutputParser(Protocol):
    """One answer's text in, in any cuts; its parts out. The outcome never depends on where the text was cut.

    Nothing raises on what a model wrote. Markup that turns out to be none (wrong from its start on, or mentioned in
    prose) comes out as Content, as it was written. A call whose name is known is given as a call from then on.
    """

    def push(self, text: str) -> list[Piece]:
        """The parts that this text completes; only what may still become markup is held back."""

    def flush(self) -> list[Piece]:
        """The model has ended its text here. What was held back comes out; a text that was cut off is not flushed.

        A call that ends after its name keeps the arguments it has: they are not closed, so that nobody takes half a
        command for a whole one. Ended before its name was known, its text becomes Content, without the markers.
        """


def merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one kind become one: fewer events for a client, and one way to write an outcome."""
    if len(pieces) < 2:
        return pieces
    joined: list[Piece] = []
    for (kind, index), group in groupby(pieces, key=_kind):
        if kind is ToolCallStart:
            joined += group
            continue
        text = "".join(piece.text for piece in group if not isinstance(piece, ToolCallStart))
        joined.append(ToolCallArguments(index, text) if kind is ToolCallArguments else kind(text))
    return joined


def _kind(piece: Piece) -> tuple[type[Any], int]:
    return type(piece), piece.index if isinstance(piece, ToolCallArguments) else 0
