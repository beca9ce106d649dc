"""Anthropic's messages become those that a chat template expects."""

from __future__ import annotations

from typing import Any

from chorus.api.anthropic.request import (
    CountRequest,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from chorus.config.sections import Limits
from chorus.serving import measure

Message = dict[str, Any]


def messages_of(body: CountRequest, limits: Limits) -> list[Message]:
    measure.count("messages", len(body.messages), limits.max_messages, "messages")
    messages: list[Message] = []
    names: dict[str, str] = {}
    if system := plain(body.system):
        messages.append({"role": "system", "content": system})
    for place, message in enumerate(body.messages):
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistant(message, f"messages[{place}]", limits.max_nesting))
            names.update((call["id"], call["function"]["name"]) for call in messages[-1].get("tool_calls", ()))
        else:
            messages += _user(message, names)
    return messages


def plain(content: str | list[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _assistant(message: InputMessage, field: str, deepest: int) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for place, block in enumerate(message.content):
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thought):
                thoughts.append(thought)
            case ToolUseBlock():
                measure.value(f"{field}.content[{place}].input", block.input, deepest)
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
    entry: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        entry["reasoning_content"] = "".join(thoughts)
    return {**entry, "tool_calls": calls} if calls else entry


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
