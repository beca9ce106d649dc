"""Text over the engine link: tokens in, text out, stop strings found on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chorus.messages.engine import Finish, Request, Sampling, Timing, TokenLogprobs
from chorus.messages.grammar import Grammar
from chorus.serving.engine_client import EngineClient, EngineStream
from chorus.serving.errors import ContextExceeded, EngineError
from chorus.text.stops import NO_STOPS, Stops
from chorus.text.tokenizer import Tokenizer

# How long a request ended by a stop string waits for the engine's own figures: a cancel takes one step.
_SETTLE_SECONDS = 1.0

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TextRequest:
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stops: Stops = NO_STOPS
    label: str = ""
    owner: str = ""
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None
    show_special: bool = False
    """Special tokens become text too, for parsers that look for them."""


class Delta(NamedTuple):
    """What one engine event brought. The text may be empty while a character or a stop string is undecided."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where they were asked for."""


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Finished:
    reason: FinishReason
    usage: Usage
    timing: Timing
    stop_string: str | None = None
    """The stop string that ended it, if one did."""


def answer_budget(prompt_tokens: int, asked: int | None, default: int | None, context_length: int) -> int:
    """How many tokens may be generated. What the client asked for must fit; a default is cut to fit."""
    room = context_length - prompt_tokens
    if room < 1:
        raise ContextExceeded(prompt_tokens, None, context_length)
    if asked is None:
        return min(default or room, room)
    if asked > room:
        raise ContextExceeded(prompt_tokens, asked, context_length)
    return asked


class TextGeneration(AsyncIterator[Delta | Finished]):
    """Deltas, then one Finished. Close it when leaving early: that cancels the request in the engine."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, request: TextRequest) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._stream = client.generate(
            Request(
                id=request.label,
                prompt=request.prompt,
                max_tokens=request.max_tokens,
                stop_tokens=tokenizer.eos_ids,
                sampling=request.sampling,
                logprobs=request.top_logprobs if request.logprobs else None,
                grammar=request.grammar,
                owner=request.owner,
            )
        )
        self._text = _TextAssembly(tokenizer, request.stops, request.show_special)
        self._clock = _Clock()
        self._events = self._run()

    @property
    def prompt(self) -> tuple[int, ...]:
        return self._request.prompt

    def __anext__(self) -> Awaitable[Delta | Finished]:
        return self._events.__anext__()

    async def accepted(self) -> None:
        """Submits it and waits until the engine has taken it; raises its refusal."""
        await self._stream.accepted()

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._stream.aclose()

    async def cut(self) -> Finished:
        """Ends it here, as a stop string would."""
        await self._events.aclose()
        return await self._stopped()

    async def _run(self) -> AsyncGenerator[Delta | Finished]:
        text = self._text
        async for progress in self._stream:
            if progress.tokens:
                self._clock.tick()
            piece, used = text.push(progress.tokens)
            finished = progress.finish
            if finished and not text.stopped:
                piece += text.flush()
            if used or piece:
                yield Delta(piece, progress.tokens[:used], progress.logprobs[:used])
            if finished:
                stopped = text.stopped or finished is not Finish.LENGTH
                timing = progress.timing or self._clock.timing(len(self._request.prompt), text.used)
                # A stop token is counted by the engine and by nobody else.
                generated = text.used if text.stopped else max(text.used, timing.generated_tokens)
                yield self._finished("stop" if stopped else "length", generated, timing)
                return
            if text.stopped:
                yield await self._stopped()
                return

    async def _stopped(self) -> Finished:
        timing = await _settle(self._stream) or self._clock.timing(len(self._request.prompt), self._text.used)
        return self._finished("stop", self._text.used, timing)

    def _finished(self, reason: FinishReason, generated: int, timing: Timing) -> Finished:
        usage = Usage(len(self._request.prompt), generated, timing.cached_tokens)
        return Finished(reason, usage, timing, self._text.stop_string)


class _TextAssembly:
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


class _Clock:
    """What this side can tell about a request whose engine gave no figures."""

    def __init__(self) -> None:
        self._submitted = time.monotonic()
        self._first: float | None = None
        self._last = self._submitted

    def tick(self) -> None:
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last

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
        # The answer is complete either way; only the figures are missing.
        return None
    return None
