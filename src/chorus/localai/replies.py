"""An answer as LocalAI reads it: usage so far in every chunk, tool calls by index, all log probabilities at the end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

from chorus.messages.engine import TokenLogprobs
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.blocks import unfinished
from chorus.serving.generation import AnswerDelta, AnswerEnd
from chorus.text.detokenizer import REPLACEMENT
from chorus.text.parsers.toolkit.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart


class TokenTexts(Protocol):
    def token_text(self, token: int) -> str: ...
    def token_bytes(self, token: int) -> bytes: ...


class ReplyWriter:
    """For one answer. `chat`: the answer was read here, and LocalAI gets its parts; else it reads the text itself."""

    def __init__(self, tokenizer: TokenTexts, prompt_tokens: int, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._chat = chat
        self._tokens = 0
        self._logprobs: list[dict[str, Any]] = []

    def chunk(self, delta: AnswerDelta) -> wire.Reply | None:
        """None where there is nothing to show yet."""
        self._tokens += len(delta.tokens)
        self._logprobs += [self._entry(token, of) for token, of in zip(delta.tokens, delta.logprobs, strict=False)]
        text = "".join(piece.text for piece in delta.pieces if isinstance(piece, Content)).replace(REPLACEMENT, "")
        deltas = chat_deltas(delta.pieces) if self._chat else []
        if not text and not deltas:
            return None
        return wire.Reply(
            message=text.encode(), tokens=self._tokens, prompt_tokens=self._prompt_tokens, chat_deltas=deltas
        )

    def last(self, end: AnswerEnd) -> wire.Reply:
        return wire.Reply(
            tokens=end.usage.completion_tokens,
            prompt_tokens=end.usage.prompt_tokens,
            timing_prompt_processing=end.timing.prompt_seconds * 1000,
            timing_token_generation=end.timing.generation_seconds * 1000,
            logprobs=self._logprobs_blob(),
        )

    def _logprobs_blob(self) -> bytes:
        return json.dumps({"content": self._logprobs}, ensure_ascii=False).encode() if self._logprobs else b""

    def _entry(self, token: int, of: TokenLogprobs) -> dict[str, Any]:
        best = [self._candidate(candidate, logprob) for candidate, logprob in of.top]
        return {**self._candidate(token, of.logprob), "top_logprobs": best}

    def _candidate(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "id": token,
            "token": self._tokenizer.token_text(token),
            "bytes": list(self._tokenizer.token_bytes(token)),
            "logprob": logprob,
        }


def chat_deltas(pieces: Iterable[Piece]) -> list[wire.ChatDelta]:
    """In the order in which the model wrote them; half a character at the end of an answer is left out."""
    deltas: list[wire.ChatDelta] = []
    for piece in pieces:
        match piece:
            case Content(text) if shown := text.replace(REPLACEMENT, ""):
                deltas.append(wire.ChatDelta(content=shown))
            case Reasoning(text) if shown := text.replace(REPLACEMENT, ""):
                deltas.append(wire.ChatDelta(reasoning_content=shown))
            case ToolCallStart(index, call_id, name):
                deltas.append(_call(index=index, id=call_id, name=name))
            case ToolCallArguments(index, text) if text:
                deltas.append(_call(index=index, arguments=text))
    return deltas


def whole(replies: Iterable[wire.Reply], cut_off: bool = False) -> wire.Reply:
    """One reply for an answer that is not streamed: its text, and one delta with the finished calls. Of one that its
    limit `cut_off`, half a call at the end is none.
    """
    told = list(replies)
    result = wire.Reply(message=b"".join(reply.message for reply in told))
    for name in ("tokens", "prompt_tokens", "timing_prompt_processing", "timing_token_generation", "logprobs"):
        setattr(result, name, getattr(told[-1], name))
    parts = [part for reply in told for part in reply.chat_deltas]
    if parts:
        delta = result.chat_deltas.add(
            content="".join(part.content for part in parts),
            reasoning_content="".join(part.reasoning_content for part in parts),
        )
        calls = _joined(call for part in parts for call in part.tool_calls)
        if cut_off and calls and unfinished(calls[-1].arguments):
            calls.pop()
        delta.tool_calls.extend(calls)
    return result


def _joined(parts: Iterable[wire.ToolCallDelta]) -> list[wire.ToolCallDelta]:
    by_index: defaultdict[int, list[wire.ToolCallDelta]] = defaultdict(list)
    for part in parts:
        by_index[part.index].append(part)
    return [
        wire.ToolCallDelta(
            index=index,
            id=next((part.id for part in reversed(same) if part.id), ""),
            name=next((part.name for part in reversed(same) if part.name), ""),
            arguments="".join(part.arguments for part in same),
        )
        for index, same in sorted(by_index.items())
    ]


def _call(**fields: Any) -> wire.ChatDelta:
    return wire.ChatDelta(tool_calls=[wire.ToolCallDelta(**fields)])
