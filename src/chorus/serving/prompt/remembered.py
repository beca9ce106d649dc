"""What the model wrote, remembered for the request that sends it back.

Clients send an answer back altered: arguments in another order or with those that are left to a tool's defaults, 5000.0
as 5000, spaces gone. And a text that is encoded anew may be other tokens than those that were drawn. So the tokens of a
prompt with those of its answer are kept under a digest of the conversation that they were, and a conversation that
begins so begins with these tokens.

Nobody learns anything from it: who asks has sent the whole conversation, and with it the answer.
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorus.serving.requests import measure
from chorus.serving.requests.request import GenerationRequest, Message
from chorus.serving.requests.tools import Tools
from chorus.text.parsers.toolkit.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Below this every whole number is one float, and short.
_EXACT = 2**53
# Of what a text is checked by, and of Python's objects around an entry.
_ENTRY_BYTES = 512


Defaults = Mapping[str, Mapping[str, Any]]
"""By the name of a tool, then of an argument: what it is where nobody says."""


@dataclass(frozen=True)
class Opened:
    """A prompt that waits for its answer, as its conversation will be known by then."""

    conversation: bytes
    opening: str
    """What the template wrote for the answer to begin with."""
    history: str
    """What it wrote before that, had nobody thought: a template may leave thoughts out of it later."""
    defaults: Defaults = field(default_factory=dict)


@dataclass(frozen=True)
class Remembered:
    tokens: array[int]
    """Of the prompt and of the answer."""
    cuts: tuple[int, ...]
    opening: str
    history_length: int
    history_digest: bytes

    def follows(self, history: str) -> bool:
        """Whether a conversation was written as this one was, as far as this one went."""
        return _digest(history[: self.history_length]) == self.history_digest

    @property
    def size(self) -> int:
        return self.tokens.itemsize * len(self.tokens) + 8 * len(self.cuts) + len(self.opening) + _ENTRY_BYTES


class AnswerMemory:
    """Bounded in number and in bytes; what was used last stays longest. Used from several threads."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: OrderedDict[bytes, Remembered] = OrderedDict()
        self._bytes = 0
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, prompt: Opened, tokens: Sequence[int], cuts: tuple[int, ...], answer: Message) -> None:
        """`tokens`: of the prompt, then of the answer."""
        history = prompt.history
        entry = Remembered(array("I", tokens), cuts, prompt.opening, len(history), _digest(history))
        if entry.size > self._most_bytes:
            return
        key = _next(prompt.conversation, answer, prompt.defaults)
        with self._turn:
            if known := self._entries.pop(key, None):
                self._bytes -= known.size
            self._entries[key] = entry
            self._bytes += entry.size
            while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= oldest.size

    def get(self, key: bytes) -> Remembered | None:
        with self._turn:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)


def conversation_digests(request: GenerationRequest) -> list[bytes]:
    """Of the conversation up to and with each of its messages, after one of what comes before them all."""
    tools = [tool.for_template() for tool in request.tools.leading]
    digests = [_digest(json.dumps([request.scope, tools, dict(request.template_arguments)]))]
    defaults = tool_defaults(request.tools)
    for message in request.messages or ():
        digests.append(_next(digests[-1], message, defaults))
    return digests


def tool_defaults(tools: Tools) -> Defaults:
    """Clients add them to the calls that they send back."""
    return {tool.name: _defaults(tool.parameters or {}) for tool in tools.functions}


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    described = properties.items() if isinstance(properties, dict) else ()
    return {name: part["default"] for name, part in described if isinstance(part, dict) and "default" in part}


def answer_message(pieces: Sequence[Piece], deepest: int) -> Message | None:
    """The answer as its client will send it back; None where a call in it is broken."""
    calls: dict[int, dict[str, Any]] = {}
    written: dict[int, str] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallStart):
            calls[piece.index] = {"id": piece.id, "function": {"name": piece.name}}
        elif isinstance(piece, ToolCallArguments):
            written[piece.index] = written.get(piece.index, "") + piece.text
    for index, call in calls.items():
        try:
            call["function"]["arguments"] = measure.arguments("", written.get(index, ""), deepest)
        except measure.TooMuch:
            return None
        if isinstance(call["function"]["arguments"], str):
            return None
    return {
        "role": "assistant",
        "content": "".join(piece.text for piece in pieces if isinstance(piece, Content)),
        "reasoning_content": "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        "tool_calls": list(calls.values()),
    }


def without_reasoning(messages: Sequence[Message]) -> list[Message]:
    return [{name: part for name, part in message.items() if name not in _REASONING_FIELDS} for message in messages]


def _next(before: bytes, message: Message, defaults: Defaults) -> bytes:
    return hashlib.sha256(before + _written(_meant(message, defaults)).encode()).digest()


def _meant(message: Message, defaults: Defaults) -> Any:
    """An answer by what it means, so that a client may write it otherwise; anything else as it is."""
    if message["role"] != "assistant":
        return message
    reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name)), "")
    calls = [_meant_call(call, defaults) for call in message.get("tool_calls") or ()]
    return ["assistant", message["content"].strip(), reasoning.strip(), calls]


def _meant_call(call: Mapping[str, Any], defaults: Defaults) -> Any:
    name, arguments = call["function"]["name"], _value(call["function"]["arguments"])
    if isinstance(arguments, dict):
        usual = {name: _written(_value(value)) for name, value in defaults.get(name, {}).items()}
        arguments = {name: value for name, value in arguments.items() if usual.get(name) != _written(value)}
    return [call.get("id"), name, arguments]


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _value(value: Any) -> Any:
    """A whole number is the same with and without a point; true is no number here, as in JSON."""
    match value:
        case dict():
            return {name: _value(part) for name, part in value.items()}
        case list():
            return [_value(part) for part in value]
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
    return value


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
