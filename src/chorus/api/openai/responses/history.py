"""Items become the messages that a chat template expects, and answers become items that can be continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorus.api.openai.responses.request import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    joined,
)
from chorus.config.sections import Limits
from chorus.serving.blocks import Block
from chorus.serving.requests import measure

Message = dict[str, Any]


def messages_of(items: str | Sequence[Item], limits: Limits, before: Sequence[Message] = ()) -> list[Message]:
    """What an assistant thought, said and called in one go are separate items, and one message to a template."""
    told = _Told(before)
    fresh = 1 if isinstance(items, str) else len(items)
    measure.count("input", len(before) + fresh, limits.max_messages, "items, with those of earlier responses,")
    if isinstance(items, str):
        told.add({"role": "user", "content": items})
        return told.messages
    for place, item in enumerate(items):
        match item:
            case MessageItem(role="assistant"):
                told.say(joined(item.content))
            case MessageItem():
                told.add({"role": item.role, "content": joined(item.content)})
            case ReasoningItem():
                told.think(joined(item.content or item.summary))
            case FunctionCallItem():
                arguments = measure.arguments(f"input[{place}].arguments", item.arguments, limits.max_nesting)
                told.call(item.call_id, item.name, arguments)
            case FunctionCallOutputItem():
                told.result(item.call_id, joined(item.output))
    return told.messages


def answered(messages: Sequence[Message], blocks: Sequence[Block], deepest: int) -> list[Message]:
    """The conversation with the model's own answer, for the request that continues it."""
    told = _Told(messages)
    for block in blocks:
        match block.kind:
            case "reasoning":
                told.think(block.text)
            case "text":
                told.say(block.text)
            case "call":
                told.call(block.call_id, block.name, _own_arguments(block.text, deepest))
    return told.messages


def _own_arguments(text: str, deepest: int) -> Any:
    """What the model nested too deep for a client to send is kept as it was written."""
    try:
        return measure.arguments("arguments", text, deepest)
    except measure.TooMuch:
        return text


class _Told:
    """A conversation that grows by one item at a time, each at the same cost; messages from before stay as they are."""

    def __init__(self, before: Sequence[Message]) -> None:
        self.messages = list(before)
        self._last_is_ours = False
        self._names: dict[str, str] = {}
        for message in before:
            for call in message.get("tool_calls", ()):
                self._names.setdefault(call["id"], call["function"]["name"])

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._last_is_ours = True

    def say(self, text: str) -> None:
        self._turn("content", "tool_calls")["content"] = text

    def think(self, text: str) -> None:
        if text:
            self._turn("content", "tool_calls", "reasoning_content")["reasoning_content"] = text

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn().setdefault("tool_calls", []).append(call)
        self._names.setdefault(call_id, name)

    def result(self, call_id: str, output: str) -> None:
        name = self._names.get(call_id)
        result = {"role": "tool", "tool_call_id": call_id, "content": output}
        self.add({**result, "name": name} if name else result)

    def _turn(self, *taken: str) -> Message:
        """The assistant's message under way, or a new one where that already has what is to come."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or any(last.get(name) for name in taken):
            self.add({"role": "assistant", "content": ""})
        elif not self._last_is_ours:
            calls = {"tool_calls": list(last["tool_calls"])} if "tool_calls" in last else {}
            self.messages.pop()
            self.add({**last, **calls})
        return self.messages[-1]
