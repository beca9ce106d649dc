"""Items become the messages that a chat template expects, and answers become items that can be continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorus.api.responses.request import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    joined,
)
from chorus.frontend.blocks import Block
from chorus.frontend.conversation import decoded_arguments

Message = dict[str, Any]


def messages_of(items: str | Sequence[Item], before: Sequence[Message] = ()) -> list[Message]:
    """What an assistant thought, said and called in one go are separate items, and one message to a template."""
    messages = list(before)
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in items:
        match item:
            case MessageItem(role="assistant"):
                _say(messages, joined(item.content))
            case MessageItem():
                messages.append({"role": item.role, "content": joined(item.content)})
            case ReasoningItem():
                _think(messages, joined(item.content or item.summary))
            case FunctionCallItem():
                _call(messages, item.call_id, item.name, item.arguments)
            case FunctionCallOutputItem():
                name = _name_of(messages, item.call_id)
                result = {"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)}
                messages.append({**result, **({"name": name} if name else {})})
    return messages


def answered(messages: Sequence[Message], blocks: Sequence[Block]) -> list[Message]:
    """The conversation with the model's own answer, for the request that continues it."""
    grown = list(messages)
    for block in blocks:
        match block.kind:
            case "reasoning":
                _think(grown, block.text)
            case "text":
                _say(grown, block.text)
            case "call":
                _call(grown, block.call_id, block.name, block.text)
    return grown


def _turn(messages: list[Message], *taken: str) -> Message:
    """The assistant's message under way, or a new one where that already has what is to come."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) for name in taken):
        last = {"role": "assistant", "content": ""}
    else:
        messages.pop()
        last = dict(last)
    messages.append(last)
    return last


def _say(messages: list[Message], text: str) -> None:
    _turn(messages, "content", "tool_calls")["content"] = text


def _think(messages: list[Message], text: str) -> None:
    if text:
        _turn(messages, "content", "tool_calls", "reasoning_content")["reasoning_content"] = text


def _call(messages: list[Message], call_id: str, name: str, arguments: str) -> None:
    turn = _turn(messages)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": decoded_arguments(arguments)}}
    turn["tool_calls"] = [*turn.get("tool_calls", ()), call]


def _name_of(messages: Sequence[Message], call_id: str) -> str | None:
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    return next((call["function"]["name"] for call in calls if call["id"] == call_id), None)
