"""An answer as a row of blocks: reasoning, text and tool calls, in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic_core import from_json

from chorus.text.parsers.toolkit.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart

BlockKind = Literal["text", "reasoning", "call"]


@dataclass
class Block:
    number: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """For a call: its arguments."""
        return "".join(self._texts)

    @property
    def half_a_call(self) -> bool:
        """Its arguments have not come to their end."""
        return self.kind == "call" and unfinished(self.text)

    def grow(self, text: str) -> None:
        self._texts.append(text)


@dataclass(frozen=True)
class Opened:
    block: Block


@dataclass(frozen=True)
class Grew:
    block: Block
    text: str


@dataclass(frozen=True)
class Closed:
    block: Block


Change = Opened | Grew | Closed


def unfinished(arguments: str) -> bool:
    """Whether the arguments of a call are no JSON, or not all of it."""
    try:
        from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return True
    return False


class Blocks:
    """Grows with an answer's pieces and tells what each of them changed."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._calls: dict[int, Block] = {}

    def push(self, pieces: Iterable[Piece]) -> Iterator[Change]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._prose("text", text)
                case Reasoning(text):
                    yield from self._prose("reasoning", text)
                case ToolCallStart(index, call_id, name):
                    yield from self._begin(Block(len(self.all), "call", call_id, name))
                    self._calls[index] = self.all[-1]
                case ToolCallArguments(index, text):
                    if text:
                        self._calls[index].grow(text)
                        yield Grew(self._calls[index], text)

    def finish(self) -> Iterator[Change]:
        if self._open:
            yield Closed(self._open)
            self._open = None

    def cut_off(self) -> None:
        """The answer ended here by its limit: half a command must not be taken for a whole one, so it is none."""
        if self.all and self.all[-1].half_a_call:
            self.all.pop()

    def of_kind(self, kind: BlockKind) -> list[Block]:
        return [block for block in self.all if block.kind == kind]

    def text_of(self, kind: BlockKind) -> str:
        return "".join(block.text for block in self.all if block.kind == kind)

    def _prose(self, kind: BlockKind, text: str) -> Iterator[Change]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._begin(Block(len(self.all), kind))
        block = self.all[-1]
        block.grow(text)
        yield Grew(block, text)

    def _begin(self, block: Block) -> Iterator[Change]:
        yield from self.finish()
        self.all.append(block)
        self._open = block
        yield Opened(block)
