"""Chat answers, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chorus.api.openai.choices import ChoicesFormat, TokenRun
from chorus.api.openai.logprobs import logprob_entries
from chorus.api.respond import WholeAnswer
from chorus.api.usage import Outcome
from chorus.messages.engine import TokenLogprobs
from chorus.serving.blocks import Block
from chorus.serving.generation import AnswerDelta
from chorus.text.parsers.toolkit.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart


@dataclass
class ChatFormat(ChoicesFormat):
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    @property
    def nothing(self) -> dict[str, Any]:
        return {}

    def opening(self) -> bytes:
        shown = {"role": "assistant", "content": ""}
        ids = self._prompt_ids()
        return b"".join(self.chunk(choice, shown, TokenRun(), **ids) for choice in range(self.choices))

    def delta(self, delta: AnswerDelta) -> bytes:
        if not self.shows_tokens:
            return b"".join([self._piece_chunk(delta.choice, piece) for piece in delta.pieces])
        self.hold(delta)
        if not delta.pieces:
            return b""
        *first, last = [_delta(piece) for piece in delta.pieces]
        chunks = [self.chunk(delta.choice, shown, TokenRun()) for shown in first]
        return b"".join(chunks) + self.chunk(delta.choice, last, self.release(delta.choice))

    def shown(self, kind: str, text: str) -> dict[str, Any]:
        return {kind: text}

    def _piece_chunk(self, choice: int, piece: Piece) -> bytes:
        match piece:
            case Content(text):
                return self.text_chunk(choice, "content", text)
            case Reasoning(text):
                return self.text_chunk(choice, "reasoning_content", text)
            case _:
                return self.chunk(choice, _delta(piece), TokenRun())

    def entry(self, choice: int, shown: Any, run: TokenRun, reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(run.tokens, run.logprobs) if run.tokens else None
        return {"index": choice, "delta": shown, "logprobs": logprobs, "finish_reason": reason}

    def whole_entry(self, choice: int, answer: WholeAnswer) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "index": choice,
            "message": message_body(answer),
            "logprobs": self._logprobs(answer.tokens, answer.logprobs),
            "finish_reason": answer.ended.reason,
        }
        if self.with_token_ids:
            entry["token_ids"] = answer.tokens
        return entry

    def whole(self, answers: Sequence[WholeAnswer], outcome: Outcome) -> dict[str, Any]:
        return {**super().whole(answers, outcome), **self._prompt_ids()}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.prompts[0]} if self.with_token_ids else {}

    def _logprobs(self, tokens: list[int], logprobs: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        return {"content": logprob_entries(self.tokenizer, zip(tokens, logprobs, strict=True)), "refusal": None}


def message_body(answer: WholeAnswer) -> dict[str, Any]:
    calls = answer.blocks.of_kind("call")
    text = answer.blocks.text_of("text")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not text else text,
        "refusal": None,
        "annotations": [],
    }
    if reasoning := answer.blocks.text_of("reasoning"):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    return message


def _call(block: Block) -> dict[str, Any]:
    return {"id": block.call_id, "type": "function", "function": {"name": block.name, "arguments": block.text}}


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
