"""Anthropic's messages, whole and as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from chorus.api.errors import ApiError
from chorus.api.respond import WholeAnswer, sse
from chorus.api.usage import Outcome
from chorus.serving.blocks import Block, Blocks, Change, Closed, Grew, Opened
from chorus.serving.generation import AnswerDelta, AnswerEnd, Usage

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def broken_off(error: ApiError) -> bytes:
    """A stream ends here."""
    return _event(error.anthropic_body())


@dataclass
class MessageFormat:
    id: str
    model: str
    prompt_tokens: int
    _blocks: Blocks = field(default_factory=Blocks, init=False)
    _end: AnswerEnd | None = field(default=None, init=False)

    @property
    def keep_alive(self) -> bytes:
        return _event({"type": "ping"})

    def opening(self) -> bytes:
        usage = usage_body(Usage(self.prompt_tokens, 0, 0, 0))
        message = self._message([], None, None, usage)
        return _event({"type": "message_start", "message": message}) + self.keep_alive

    def delta(self, delta: AnswerDelta) -> bytes:
        return b"".join(map(_event, _events(self._blocks.push(delta.pieces))))

    def end(self, end: AnswerEnd) -> bytes:
        self._end = end
        return b"".join(map(_event, _events(self._blocks.finish())))

    def closing(self, outcome: Outcome) -> bytes:
        assert self._end is not None
        delta = {"stop_reason": stop_reason(self._end), "stop_sequence": self._end.stop_string}
        last = {"type": "message_delta", "delta": delta, "usage": usage_body(outcome.usage)}
        return _event(last) + _event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return broken_off(error)

    def whole(self, answers: Sequence[WholeAnswer], outcome: Outcome) -> dict[str, Any]:
        (answer,) = answers
        content = [_complete(block) for block in answer.blocks.all]
        end = answer.ended
        return self._message(content, stop_reason(end), end.stop_string, usage_body(outcome.usage))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }


def stop_reason(end: AnswerEnd) -> str:
    return "stop_sequence" if end.stop_string is not None and end.reason == "stop" else _REASONS[end.reason]


def usage_body(usage: Usage) -> dict[str, Any]:
    """Here the input's tokens are those that were neither found stored nor stored now."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - usage.stored_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.stored_tokens,
        "cache_creation": None,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _events(changes: Iterator[Change]) -> Iterator[dict[str, Any]]:
    for change in changes:
        match change:
            case Opened(block):
                yield {"type": "content_block_start", "index": block.number, "content_block": _empty(block)}
            case Grew(block, text):
                yield {"type": "content_block_delta", "index": block.number, "delta": _grown(block, text)}
            case Closed(block):
                yield {"type": "content_block_stop", "index": block.number}


def _empty(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": "", "citations": None}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            caller = {"type": "direct"}
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}, "caller": caller}


def _grown(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text_delta", "text": text}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


def _complete(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {**_empty(block), "text": block.text}
        case "reasoning":
            return {**_empty(block), "thinking": block.text}
        case "call":
            return {**_empty(block), "input": _input(block.text)}


def _input(arguments: str) -> dict[str, Any]:
    """One that a client could not send back, since it is no JSON or nested too deep to be read, is none."""
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])
