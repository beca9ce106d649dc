"""The answer to one request: tokens from the engine become text, and the text content, reasoning and tool calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chorus.messages.engine import Finish, Request, Timing, TokenLogprobs
from chorus.serving.engine_link.client import EngineClient, EngineStream
from chorus.serving.engine_link.standing import Standing, together
from chorus.serving.errors import EngineError
from chorus.telemetry.metrics.answers import AnswerMeter, RequestMeter
from chorus.text.parsers.toolkit.pieces import Content, OutputParser, Piece, Reasoning, ToolCallStart
from chorus.text.stops import NO_STOPS, Stops
from chorus.text.tokenizer import Tokenizer

# How long a request ended by a stop string waits for the engine's own timing: a cancel takes one step.
_SETTLE_SECONDS = 1.0
# How many events may wait for a client that reads slowly; the engine's own events wait behind them.
_WAITING_EVENTS = 64

FinishReason = Literal["stop", "length", "tool_calls"]


class AnswerDelta(NamedTuple):
    """What one engine event brought to a choice. There may be no piece yet for the tokens that came."""

    choice: int
    pieces: tuple[Piece, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where they were asked for."""


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    stored_tokens: int = 0
    """Of the prompt, those that were not stored before and are now."""


@dataclass(frozen=True)
class AnswerEnd:
    choice: int
    reason: FinishReason
    usage: Usage
    timing: Timing
    stop_string: str | None = None
    """The stop string that ended it, if one did."""


Event = AnswerDelta | AnswerEnd


Keep = Callable[[Sequence[int], Sequence[Piece]], None]
"""Takes the tokens of an answer, and what was read from them."""


@dataclass(frozen=True)
class Choice:
    """One answer that is wanted: what the engine is sent, and how its text is read. No parser: all of it is content."""

    request: Request
    parser: OutputParser | None = None
    keep: Keep | None = None
    """Called with an answer that ended by itself and was read to its end."""


class Generation(AsyncIterator[Event]):
    """The events of all choices as they come, and one AnswerEnd for each; one that fails takes the others with it.

    Nothing is submitted before the first event is asked for. Close it when leaving early: that cancels in the engine.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        choices: Sequence[Choice],
        *,
        stops: Stops = NO_STOPS,
        show_special: bool = False,
        most_calls: int | None = None,
        prompts: int = 1,
    ) -> None:
        """`show_special`: special tokens become text too, for parsers that look for them. `prompts`: how many
        prompts the choices answer, equally many each.
        """
        self.prompts = tuple(choice.request.prompt for choice in choices[:: len(choices) // prompts])
        self.meter = RequestMeter(client.counts, [choice.request for choice in choices], len(choices) // prompts)
        self._streams = [client.generate(choice.request) for choice in choices]
        self._answers = [
            _answer(
                number, stream, choice, _Text(tokenizer, stops, show_special), _Reader(choice.parser, most_calls), meter
            )
            for number, (choice, stream, meter) in enumerate(
                zip(choices, self._streams, self.meter.answers, strict=True)
            )
        ]
        self._unfinished = len(choices)
        self._tasks: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue(_WAITING_EVENTS)

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def choices_per_prompt(self) -> int:
        return len(self) // len(self.prompts)

    def __anext__(self) -> Awaitable[Event]:
        return self._answers[0].__anext__() if len(self._answers) == 1 else self._next_of_many()

    def standing(self) -> Standing:
        """How far all choices are together."""
        return together([stream.standing() for stream in self._streams], self.choices_per_prompt)

    async def accepted(self) -> None:
        """Submits all and waits until the engine has taken them; where it refuses one, the others are given up."""
        if len(self._streams) == 1:
            await self._streams[0].accepted()
            return
        waits = [asyncio.create_task(stream.accepted()) for stream in self._streams]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answer, stream in zip(self._answers, self._streams, strict=True):
            await answer.aclose()
            await stream.aclose()

    async def _next_of_many(self) -> Event:
        if not self._unfinished:
            raise StopAsyncIteration
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._pump(answer)) for answer in self._answers]
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        self._unfinished -= isinstance(event, AnswerEnd)
        return event

    async def _pump(self, answer: AsyncIterator[Event]) -> None:
        try:
            async for event in answer:
                await self._events.put(event)
        except Exception as error:
            await self._events.put(error)


async def _answer(
    number: int, stream: EngineStream, choice: Choice, text: _Text, reader: _Reader, meter: AnswerMeter
) -> AsyncGenerator[Event]:
    clock, prompt_tokens = _Clock(), len(choice.request.prompt)
    finished: Finish | None = None
    timing: Timing | None = None
    tokens: list[int] = []
    pieces: list[Piece] = []
    async for progress in stream:
        shown, used = text.push(progress.tokens)
        if used:
            meter.tokens(used, clock.tick())
        finished, timing = progress.finish, progress.timing
        if timing:
            meter.prompt_read(timing)
        if finished and not text.stopped:
            shown += text.flush()
        if used or shown:
            read = reader.read(shown, used)
            if choice.keep:
                tokens += progress.tokens
                pieces += read
            yield AnswerDelta(number, read, progress.tokens[:used], progress.logprobs[:used])
        if finished or text.stopped or reader.full:
            break
    reason: FinishReason = "stop"
    generated = text.used
    if reader.full or not finished:
        timing = await _settle(stream)
    elif not text.stopped:
        reason = "length" if finished is Finish.LENGTH else "stop"
        # A stop token is counted by the engine and by nobody else.
        generated = max(text.used, timing.generated_tokens if timing else 0)
    meter.end(reason, generated, timing)
    timing = timing or clock.timing(prompt_tokens, text.used)
    # What a parser holds back may yet become markup: where the limit cut the answer off, it is the beginning of a mark
    # or of a call, and nothing for people.
    last = () if reason == "length" else reader.flush()
    if last:
        yield AnswerDelta(number, last, ())
    if choice.keep and finished is Finish.STOP and not text.stopped and not reader.full:
        choice.keep(tokens, (*pieces, *last))
    if reader.calls and reason == "stop":
        reason = "tool_calls"
    usage = Usage(prompt_tokens, generated, timing.cached_tokens, reader.reasoning_tokens, timing.stored_tokens)
    yield AnswerEnd(number, reason, usage, timing, text.stop_string)


class _Text:
    """Tokens become text that is safe to show: whole characters, and nothing that may begin a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Stops, show_special: bool) -> None:
        self.stopped = False
        self.used = 0
        self._decoder = tokenizer.stream(skip_special=not show_special)
        self._matcher = stops.matcher() if stops else None

    @property
    def stop_string(self) -> str | None:
        return self._matcher.matched if self._matcher else None

    def push(self, tokens: tuple[int, ...]) -> tuple[str, int]:
        """The text, and how many of the tokens it took: those after a stop string were never asked for."""
        shown = ""
        for number, token in enumerate(tokens, start=1):
            shown += self._match(self._decoder.push(token))
            self.used += 1
            if self.stopped:
                return shown, number
        return shown, len(tokens)

    def flush(self) -> str:
        shown = self._match(self._decoder.flush())
        if self._matcher and not self.stopped:
            shown += self._matcher.flush()
            self.stopped = self._matcher.matched is not None
        return shown

    def _match(self, piece: str) -> str:
        if self._matcher is None or not piece:
            return piece
        safe, matched = self._matcher.push(piece)
        self.stopped = matched is not None
        return safe


class _Reader:
    """Pieces from text, and the counts that only this place can make."""

    def __init__(self, parser: OutputParser | None, most_calls: int | None) -> None:
        self.calls = 0
        self.reasoning_tokens = 0
        self.full = False
        """One call more than is wanted has begun."""
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
        return () if self._parser is None or self.full else self._count(self._parser.flush())

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


class _Clock:
    """What this side can tell about a request whose engine gave no timing."""

    def __init__(self) -> None:
        self._submitted = time.monotonic()
        self._first: float | None = None
        self._last = self._submitted

    def tick(self) -> float:
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        return self._last

    def timing(self, prompt_tokens: int, generated: int) -> Timing:
        first = self._last if self._first is None else self._first
        return Timing(
            queue_seconds=0.0,
            prompt_seconds=first - self._submitted,
            generation_seconds=self._last - first,
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            generated_tokens=generated,
        )


async def _settle(stream: EngineStream) -> Timing | None:
    stream.cancel()
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            async for progress in stream:
                if progress.finish:
                    return progress.timing
    except (TimeoutError, EngineError):
        # The answer is complete either way; only the timing is missing.
        return None
    return None
