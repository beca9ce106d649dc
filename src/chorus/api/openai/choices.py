"""What OpenAI's two older protocols have in common on the wire: chunks of choices, their tokens, the last words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from chorus.api.errors import ApiError
from chorus.api.respond import WholeAnswer, sse
from chorus.api.usage import Outcome, performance_body, usage_body
from chorus.messages.engine import TokenLogprobs
from chorus.serving.generation import AnswerDelta, AnswerEnd
from chorus.serving.prompt.tokenizer import ServedTokenizer

DONE = b"data: [DONE]\n\n"
# No client shows it, no proxy drops it.
COMMENT = b": keep-alive\n\n"
# Stands for a text in the frame of a chunk; written as JSON it is no part of anything that comes after it there.
_TEXT = "\0"
_TEXT_JSON = orjson.dumps(_TEXT)


def broken_off(error: ApiError) -> bytes:
    """A stream ends here."""
    return sse(error.body())


@dataclass
class TokenRun:
    """Tokens of one choice with what is known of them."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass
class ChoicesFormat(ABC):
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    id: str
    created: int
    model: str
    fingerprint: str
    tokenizer: ServedTokenizer
    prompts: tuple[tuple[int, ...], ...]
    choices: int
    include_usage: bool = False
    with_logprobs: bool = False
    with_token_ids: bool = False
    _held: dict[int, TokenRun] = field(default_factory=dict, init=False)
    _ended: list[AnswerEnd] = field(default_factory=list, init=False)
    _frames: dict[tuple[int, str], tuple[bytes, bytes]] = field(default_factory=dict, init=False)

    @property
    def keep_alive(self) -> bytes:
        return COMMENT

    @abstractmethod
    def opening(self) -> bytes:
        """What a stream begins with."""

    @abstractmethod
    def delta(self, delta: AnswerDelta) -> bytes:
        """Chunks for what came."""

    @abstractmethod
    def entry(self, choice: int, shown: Any, run: TokenRun, reason: str | None) -> dict[str, Any]:
        """A choice within a chunk."""

    @abstractmethod
    def whole_entry(self, choice: int, answer: WholeAnswer) -> dict[str, Any]:
        """A choice within a whole answer."""

    @abstractmethod
    def shown(self, kind: str, text: str) -> Any:
        """What a chunk shows for a piece of text."""

    @property
    @abstractmethod
    def nothing(self) -> Any:
        """What the last chunk of a choice shows."""

    def end(self, end: AnswerEnd) -> bytes:
        self._ended.append(end)
        # The last one waits for the usage and speed that go with it.
        return self._finish(end) if len(self._ended) < self.choices else b""

    def closing(self, outcome: Outcome) -> bytes:
        last = self._finish(self._ended[-1], performance=performance_body(outcome.performance))
        if self.include_usage:
            last += sse({**self._head(self.chunk_kind), "choices": [], "usage": usage_body(outcome.usage)})
        return last + DONE

    def failure(self, error: ApiError) -> bytes:
        return broken_off(error)

    def whole(self, answers: Sequence[WholeAnswer], outcome: Outcome) -> dict[str, Any]:
        return {
            **self._head(self.whole_kind),
            "choices": [self.whole_entry(choice, answer) for choice, answer in enumerate(answers)],
            "usage": usage_body(outcome.usage),
            "performance": performance_body(outcome.performance),
        }

    def chunk(self, choice: int, shown: Any, run: TokenRun, reason: str | None = None, **more: Any) -> bytes:
        entry = self.entry(choice, shown, run, reason)
        if self.with_token_ids:
            entry["token_ids"] = run.tokens
        if self.include_usage:
            more["usage"] = None
        return sse({**self._head(self.chunk_kind), "choices": [entry], **more})

    @property
    def shows_tokens(self) -> bool:
        return self.with_logprobs or self.with_token_ids

    def text_chunk(self, choice: int, kind: str, text: str) -> bytes:
        """For streams that show no tokens: there a chunk differs from the one before in its text alone."""
        frame = self._frames.get((choice, kind))
        if frame is None:
            before, _, after = self.chunk(choice, self.shown(kind, _TEXT), TokenRun()).rpartition(_TEXT_JSON)
            frame = self._frames[choice, kind] = (before, after)
        return b"%b%b%b" % (frame[0], orjson.dumps(text), frame[1])

    def hold(self, delta: AnswerDelta) -> None:
        """Tokens whose text is not out yet leave with the next chunk of their choice."""
        if self.shows_tokens:
            held = self._held.setdefault(delta.choice, TokenRun())
            held.tokens += delta.tokens
            held.logprobs += delta.logprobs

    def release(self, choice: int) -> TokenRun:
        return self._held.pop(choice, None) or TokenRun()

    def _finish(self, end: AnswerEnd, **more: Any) -> bytes:
        return self.chunk(end.choice, self.nothing, self.release(end.choice), end.reason, **more)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
