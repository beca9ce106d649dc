"""Responses, whole and as events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorus.api.errors import ApiError
from chorus.api.openai.choices import COMMENT
from chorus.api.openai.logprobs import logprob_entries
from chorus.api.openai.responses.items import begun, complete, item_id, reasoning_part, text_part
from chorus.api.respond import WholeAnswer, sse
from chorus.api.usage import Outcome, performance_body
from chorus.serving.blocks import Block, Blocks, Change, Closed, Grew, Opened
from chorus.serving.generation import AnswerDelta, AnswerEnd, TextTokens, Usage
from chorus.serving.prompt.tokenizer import ServedTokenizer

Event = dict[str, Any]


@dataclass
class ResponsesFormat:
    id: str
    echoed: dict[str, Any]
    """What every response object repeats of its request."""
    tokenizer: ServedTokenizer
    with_logprobs: bool
    finished: Callable[[dict[str, Any], Sequence[Block]], None]
    """Told the final object, once."""
    created: int = field(default_factory=lambda: int(time.time()))
    _blocks: Blocks = field(default_factory=Blocks, init=False)
    _text_tokens: TextTokens = field(default_factory=TextTokens, init=False)
    _logprobs: defaultdict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list), init=False)
    _fresh_logprobs: list[dict[str, Any]] = field(default_factory=list, init=False)
    _sequence: int = field(default=0, init=False)
    _end: AnswerEnd | None = field(default=None, init=False)

    @property
    def keep_alive(self) -> bytes:
        return COMMENT

    def opening(self) -> bytes:
        body = self._resource("in_progress", [])
        events = ({"type": f"response.{kind}", "response": body} for kind in ("created", "in_progress"))
        return self._say(events)

    def delta(self, delta: AnswerDelta) -> bytes:
        if self.with_logprobs:
            self._fresh_logprobs += logprob_entries(self.tokenizer, self._text_tokens.take(delta))
        return self._say(self._changes(self._blocks.push(delta.pieces), cut_off=False))

    def end(self, end: AnswerEnd) -> bytes:
        self._end = end
        return self._say(self._changes(self._blocks.finish(), cut_off=end.reason == "length"))

    def closing(self, outcome: Outcome) -> bytes:
        assert self._end is not None
        body = self._final(self._blocks, self._logprobs, self._end, outcome)
        kind = "response.incomplete" if self._end.reason == "length" else "response.completed"
        return self._say(iter([{"type": kind, "response": body}]))

    def failure(self, error: ApiError) -> bytes:
        return self._say(iter([{"type": "error", **error.body()}]))

    def whole(self, answers: Sequence[WholeAnswer], outcome: Outcome) -> dict[str, Any]:
        (answer,) = answers
        logprobs = {
            number: logprob_entries(self.tokenizer, tokens) for number, tokens in answer.text_tokens.items() if tokens
        }
        return self._final(answer.blocks, logprobs, answer.ended, outcome)

    def _changes(self, changes: Iterator[Change], cut_off: bool) -> Iterator[Event]:
        for change in changes:
            match change:
                case Opened(block):
                    yield from self._opened(block)
                case Grew(block, text):
                    yield self._grew(block, text)
                case Closed(block):
                    yield from self._closed(block, cut_off)

    def _opened(self, block: Block) -> Iterator[Event]:
        yield {"type": "response.output_item.added", "output_index": block.number, "item": begun(self.id, block)}
        if block.kind != "call":
            part = text_part("", []) if block.kind == "text" else reasoning_part("")
            yield {"type": "response.content_part.added", **self._place(block), "part": part}

    def _grew(self, block: Block, text: str) -> Event:
        match block.kind:
            case "text":
                fresh, self._fresh_logprobs = self._fresh_logprobs, []
                self._logprobs[block.number] += fresh
                return {"type": "response.output_text.delta", **self._place(block), "delta": text, "logprobs": fresh}
            case "reasoning":
                return {"type": "response.reasoning_text.delta", **self._place(block), "delta": text}
            case "call":
                return {"type": "response.function_call_arguments.delta", **self._item(block), "delta": text}

    def _closed(self, block: Block, cut_off: bool) -> Iterator[Event]:
        logprobs = self._logprobs[block.number]
        item = complete(self.id, block, logprobs, cut_off)
        match block.kind:
            case "text":
                done = {"type": "response.output_text.done", **self._place(block)}
                yield {**done, "text": block.text, "logprobs": logprobs}
            case "reasoning":
                yield {"type": "response.reasoning_text.done", **self._place(block), "text": block.text}
            case "call":
                done = {"type": "response.function_call_arguments.done", **self._item(block)}
                yield {**done, "name": block.name, "arguments": block.text}
        if block.kind != "call":
            yield {"type": "response.content_part.done", **self._place(block), "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": block.number, "item": item}

    def _item(self, block: Block) -> dict[str, Any]:
        return {"item_id": item_id(self.id, block), "output_index": block.number}

    def _place(self, block: Block) -> dict[str, Any]:
        return {**self._item(block), "content_index": 0}

    def _final(
        self, blocks: Blocks, logprobs: Mapping[int, list[dict[str, Any]]], end: AnswerEnd, outcome: Outcome
    ) -> dict[str, Any]:
        cut_off = end.reason == "length"
        items = [
            complete(self.id, block, logprobs.get(block.number, []), cut_off and block is blocks.all[-1])
            for block in blocks.all
        ]
        body = self._resource("incomplete" if cut_off else "completed", items)
        body["usage"] = usage_body(outcome.usage)
        body["performance"] = performance_body(outcome.performance)
        if cut_off:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            body["completed_at"] = int(time.time())
        # A stream has told of the half call already; whoever goes on from here goes on without it.
        self.finished(body, [block for block in blocks.all if not (cut_off and block.half_a_call)])
        return body

    def _resource(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "error": None,
            "output": output,
            "usage": None,
            **self.echoed,
        }

    def _say(self, events: Iterator[Event]) -> bytes:
        said = b""
        for event in events:
            said += sse({**event, "sequence_number": self._sequence}, event["type"])
            self._sequence += 1
        return said


def broken_off(error: ApiError) -> bytes:
    """A stream ends before it has said anything."""
    return sse({"type": "error", **error.body(), "sequence_number": 0}, "error")


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
