"""The outline that nearly all families share: reasoning, text and tool calls, one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chorus.text.parsers.toolkit.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart, merged
from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Source, Steps
from chorus.text.parsers.toolkit.values import ToolSchema


@dataclass(frozen=True)
class ParserOptions:
    """What a parser must know of the request whose answer it reads."""

    tools: Mapping[str, ToolSchema]
    reasoning: tuple[str, str] | None
    starts_in_reasoning: bool
    id_factory: Callable[[], str]


class Answer:
    """The parts found so far and not yet handed over; numbers the calls."""

    def __init__(self, source: Source, id_factory: Callable[[], str]) -> None:
        self._source = source
        self._id_factory = id_factory
        self._pieces: list[Piece] = []
        self._index = -1
        self.in_call = False

    def take(self) -> list[Piece]:
        pieces, self._pieces = merged(self._pieces), []
        return pieces

    def content(self, text: str) -> None:
        self._add(Content(text) if text else None)

    def reasoning(self, text: str) -> None:
        self._add(Reasoning(text) if text else None)

    def start(self, name: str, call_id: str | None = None) -> None:
        self._index += 1
        self.in_call = True
        self._add(ToolCallStart(self._index, call_id or self._id_factory(), name))

    def arguments(self, text: str) -> None:
        self._add(ToolCallArguments(self._index, text) if text else None)

    def _add(self, piece: Piece | None) -> None:
        self._source.commit()
        if piece is not None:
            self._pieces.append(piece)

    def end_call(self) -> None:
        self.in_call = False
        self._source.commit()


class StreamingParser:
    """Runs a family's generator: each push feeds it and lets it go as far as the text allows."""

    def __init__(self, request: ParserOptions) -> None:
        self.request = request
        self.source = Source()
        self.answer = Answer(self.source, request.id_factory)
        self._steps = self.parse()

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        self.source.feed(text)
        next(self._steps, None)
        return self.answer.take()

    def flush(self) -> list[Piece]:
        self.source.ended = True
        next(self._steps, None)
        return self.answer.take()

    @abstractmethod
    def parse(self) -> Steps[None]:
        """Read the whole answer; ends when the text has ended."""


class TrimmedReasoning:
    """The markers stand on lines of their own; those line breaks are not part of the thought."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._begun = False
        self._space: list[str] = []

    def __call__(self, text: str) -> None:
        words = text.rstrip()
        if not words:
            if self._begun:
                self._space.append(text)
            return
        self._answer.reasoning("".join(self._space) + (words if self._begun else words.lstrip()))
        self._begun = True
        self._space = [text[len(words) :]]


class OutlineParser(StreamingParser):
    """Reasoning may stand at the beginning and right after a call or other reasoning; calls may stand anywhere.

    Space between the parts is layout and is dropped; the space an answer begins with is kept if text follows it.
    """

    # Strings that open a call or a section of calls.
    opens: ClassVar[tuple[str, ...]] = ()
    # Strings that open a call only where an answer may begin: too common to be taken for markup elsewhere.
    opens_at_start: ClassVar[tuple[str, ...]] = ()
    # All other markup inside calls: taken out of the text of a call that was cut off before its name was known.
    inner: ClassVar[tuple[str, ...]] = ()
    # Wrappers and end-of-turn tokens without a meaning here.
    dropped: ClassVar[tuple[str, ...]] = ()
    # Those of them that a model writes around the parts of an answer, and not at its end.
    wraps: ClassVar[tuple[str, ...]] = ()
    # Where the opening string is a token of its own, models open a call without closing their reasoning first.
    call_ends_reasoning: ClassVar[bool] = False

    def __init__(self, request: ParserOptions) -> None:
        opens = self.opens if request.tools else ()
        at_start = self.opens_at_start if request.tools else ()
        think, end_think = request.reasoning or ("", "")
        self._think = think
        self._inline = Markers((*opens, *self.dropped))
        self._opening = Markers((*opens, *at_start, *self.dropped, *([think] if think else [])))
        self._reasoning_ends = Markers(
            ([end_think] if end_think else []) + [*(opens if self.call_ends_reasoning else ())]
        )
        self._markup = Markers((*self.opens, *self.inner))
        super().__init__(request)

    @abstractmethod
    def call(self, opened_by: str) -> Steps[None]:
        """Read what one opening string announced, its end included. May raise Malformed or CutOff."""

    def parse(self) -> Steps[None]:
        marker: str | None = self._think if self.request.starts_in_reasoning and self._think else None
        begins = True
        may_open = True
        while True:
            if marker is None and may_open:
                space = yield from self.source.skip_space()
                marker = yield from self.source.take_marker(self._opening)
                if marker is None and begins:
                    self.answer.content(space)
            if marker is None:
                self.source.commit()
                marker = yield from self.source.until(self._inline, self.answer.content)
            if marker is None:
                return
            begins = False
            if marker == self._think:
                marker = yield from self._read_reasoning()
                may_open = True
            elif marker in self.dropped:
                marker = None
            else:
                may_open = yield from self._read_call(marker)
                marker = None

    def _read_reasoning(self) -> Steps[str | None]:
        """The opening string of the call that ended the reasoning, if one did."""
        yield from self.source.skip_space()
        yield from self.source.take_marker(Markers((self._think,)))  # some models repeat what the prompt has opened
        marker = yield from self.source.until(self._reasoning_ends, TrimmedReasoning(self.answer))
        self.source.commit()
        return marker if marker in self.opens else None

    def _read_call(self, marker: str) -> Steps[bool]:
        """False if it was none after all: then the text goes on as before."""
        try:
            yield from self.call(marker)
        except Malformed:
            self.answer.content(self.source.unaccounted())
            self.answer.end_call()
            return False
        except CutOff:
            fragment = self.source.unaccounted() + self.source.take(len(self.source.rest()))
            if not self.answer.in_call:
                self.answer.content(self._markup.without(fragment).strip())
        self.answer.end_call()
        return True


def tools_by_name(tools: Sequence[Mapping[str, Any]] | None) -> dict[str, ToolSchema]:
    found = (ToolSchema.of(tool) for tool in tools or ())
    return {tool.name: tool for tool in found}
