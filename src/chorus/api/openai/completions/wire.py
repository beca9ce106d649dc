"""Completions, whole and in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chorus.api.openai.choices import ChoicesFormat, TokenRun
from chorus.api.respond import WholeAnswer
from chorus.serving.generation import AnswerDelta
from chorus.text.parsers.toolkit.pieces import Content


@dataclass
class CompletionFormat(ChoicesFormat):
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    echoed: tuple[str, ...] = ()
    """The texts of the prompts, where they are to be repeated before the answers."""
    _offsets: dict[int, int] = field(default_factory=dict, init=False)

    @property
    def nothing(self) -> str:
        return ""

    def opening(self) -> bytes:
        first = range(self.choices) if self.echoed or self.with_token_ids else range(0)
        return b"".join(self.chunk(choice, self._echo(choice), TokenRun()) for choice in first)

    def delta(self, delta: AnswerDelta) -> bytes:
        text = "".join([piece.text for piece in delta.pieces if isinstance(piece, Content)])
        if not self.shows_tokens:
            return self.text_chunk(delta.choice, "text", text) if text else b""
        self.hold(delta)
        return self.chunk(delta.choice, text, self.release(delta.choice)) if text else b""

    def shown(self, kind: str, text: str) -> str:
        return text

    def entry(self, choice: int, shown: Any, run: TokenRun, reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(choice, run) if run.tokens else None
        entry = {"index": choice, "text": shown, "logprobs": logprobs, "finish_reason": reason}
        if self.with_token_ids and not run.tokens and reason is None:
            entry["prompt_token_ids"] = self._prompt(choice)
        return entry

    def whole_entry(self, choice: int, answer: WholeAnswer) -> dict[str, Any]:
        run = TokenRun(answer.tokens, answer.logprobs)
        entry: dict[str, Any] = {
            "index": choice,
            "text": self._echo(choice) + answer.blocks.text_of("text"),
            "logprobs": self._logprobs(choice, run),
            "finish_reason": answer.ended.reason,
        }
        if self.with_token_ids:
            entry |= {"token_ids": answer.tokens, "prompt_token_ids": self._prompt(choice)}
        return entry

    def _prompt_number(self, choice: int) -> int:
        return choice // (self.choices // len(self.prompts))

    def _prompt(self, choice: int) -> tuple[int, ...]:
        return self.prompts[self._prompt_number(choice)]

    def _echo(self, choice: int) -> str:
        return self.echoed[self._prompt_number(choice)] if self.echoed else ""

    def _logprobs(self, choice: int, run: TokenRun) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        texts = [self.tokenizer.token_text(token) for token in run.tokens]
        offset = self._offsets.get(choice, 0)
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[choice] = offset
        tops = [
            {self.tokenizer.token_text(candidate): logprob for candidate, logprob in reversed(known.top)}
            for known in run.logprobs
        ]
        return {
            "tokens": texts,
            "token_logprobs": [known.logprob for known in run.logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
