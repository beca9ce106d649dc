"""Anthropic's messages become those that a chat template expects."""

from __future__ import annotations

from typing import Any

from chorus.api.messages.request import (
    CountRequest,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

Message = dict[str, Any]


def messages_of(body: CountRequest) -> list[Message]:
    messages: list[Message] = []
    if system := plain(body.system):
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistant(message))
        else:
            messages += _user(message, _names(messages))
    return messages


def plain(content: str | list[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _assistant(message: InputMessage) -> Message:
    entry: Message = {"role": "assistant", "content": ""}
    for block in message.content:
        match block:
            case TextBlock(text=text):
                entry["content"] += text
            case ThinkingBlock(thinking=thought):
                entry["reasoning_content"] = entry.get("reasoning_content", "") + thought
            case ToolUseBlock():
                call = {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
                entry.setdefault("tool_calls", []).append(call)
    return entry


def _user(message: InputMessage, names: dict[str, str]) -> list[Message]:
    """Results of tools come inside the user's message here, and before it everywhere else."""
    results: list[Message] = []
    texts: list[str] = []
    for block in message.content:
        match block:
            case ToolResultBlock():
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": plain(block.content)}
                name = names.get(block.tool_use_id)
                results.append({**result, **({"name": name} if name else {})})
            case TextBlock(text=text):
                texts.append(text)
    return [*results, *([{"role": message.role, "content": "\n".join(texts)}] if texts or not results else [])]


def _names(messages: list[Message]) -> dict[str, str]:
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    return {call["id"]: call["function"]["name"] for call in calls}
