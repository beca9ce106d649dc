"""One choice's answer: the text of a generation, told apart into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chorus.messages.engine import Timing, TokenLogprobs
from chorus.serving.generation import Finished, TextGeneration, Usage
from chorus.text.parsers.toolkit.pieces import Content, OutputParser, Piece, Reasoning, ToolCallStart

AnswerReason = Literal["stop", "length", "tool_calls"]


class AnswerDelta(NamedTuple):
    """What one engine event brought to a choice. There may be no piece yet for the tokens that came."""

    choice: int
    pieces: tuple[Piece, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class AnswerEnd:
    choice: int
    reason: AnswerReason
    usage: Usage
    reasoning_tokens: int
    timing: Timing
    stop_string: str | None = None


class Answer(AsyncIterator[AnswerDelta | AnswerEnd]):
    """Deltas, then one AnswerEnd. Without a parser everything is content."""

    def __init__(
        self, choice: int, generation: TextGeneration, parser: OutputParser | None = None, most_calls: int | None = None
    ) -> None:
        self.choice = choice
        self._generation = generation
        self._reader = _Reader(parser, most_calls)
        self._events = self._run()

    @property
    def prompt(self) -> tuple[int, ...]:
        return self._generation.prompt

    def __anext__(self) -> Awaitable[AnswerDelta | AnswerEnd]:
        return self._events.__anext__()

    async def accepted(self) -> None:
        """Submits it and waits until the engine has taken it; raises its refusal."""
        await self._generation.accepted()

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._generation.aclose()

    async def _run(self) -> AsyncGenerator[AnswerDelta | AnswerEnd]:
        reader = self._reader
        async for item in self._generation:
            if isinstance(item, Finished):
                if last := reader.flush():
                    yield AnswerDelta(self.choice, last, ())
                yield self._end(item)
                return
            pieces = reader.read(item.text, len(item.tokens))
            yield AnswerDelta(self.choice, pieces, item.tokens, item.logprobs)
            if reader.full:
                yield self._end(await self._generation.cut())
                return

    def _end(self, finished: Finished) -> AnswerEnd:
        called = self._reader.calls > 0 and finished.reason == "stop"
        return AnswerEnd(
            self.choice,
            "tool_calls" if called else finished.reason,
            finished.usage,
            self._reader.reasoning_tokens,
            finished.timing,
            finished.stop_string,
        )


class _Reader:
    """Pieces from text, and the counts that only this place can make."""

    def __init__(self, parser: OutputParser | None, most_calls: int | None) -> None:
        self.calls = 0
        self.reasoning_tokens = 0
        self.full = False
        self._parser = parser
        self._most_calls = most_calls
        # Tokens whose text the parser still holds back; they count as what they turn out to be.
        self._undecided = 0

    def read(self, text: str, tokens: int) -> tuple[Piece, ...]:
        if self._parser is None:
            return (Content(text),) if text else ()
        self._undecided += tokens
        return self._count(self._parser.push(text) if text else [])

    def flush(self) -> tuple[Piece, ...]:
        return () if self._parser is None else self._count(self._parser.flush())

    def _count(self, pieces: list[Piece]) -> tuple[Piece, ...]:
        for place, piece in enumerate(pieces):
            if isinstance(piece, ToolCallStart):
                if self.calls == self._most_calls:
                    self.full = True
                    return tuple(pieces[:place])
                self.calls += 1
        if pieces:
            if isinstance(pieces[-1], Reasoning):
                self.reasoning_tokens += self._undecided
            self._undecided = 0
        return tuple(pieces)


class TextTokens:
    """Which tokens made the visible text: those of reasoning and calls are left out, those held back are waited for."""

    def __init__(self) -> None:
        self._undecided: list[tuple[int, TokenLogprobs]] = []

    def take(self, delta: AnswerDelta) -> list[tuple[int, TokenLogprobs]]:
        self._undecided += zip(delta.tokens, delta.logprobs, strict=bool(delta.logprobs))
        if not delta.pieces:
            return []
        decided, self._undecided = self._undecided, []
        return decided if isinstance(delta.pieces[-1], Content) else []
