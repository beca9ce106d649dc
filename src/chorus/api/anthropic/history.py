"""Anthropic's messages become those that a chat template expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorus.api.anthropic import client_rules
from chorus.api.anthropic.request import (
    CountRequest,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from chorus.config.sections import Limits
from chorus.serving.requests import measure

Message = dict[str, Any]


def messages_of(body: CountRequest, limits: Limits, *, with_rules: bool) -> list[Message]:
    """`with_rules`: with what is made of the ways of real clients."""
    measure.count("messages", len(body.messages), limits.max_messages, "messages")
    return _History(body, limits, with_rules).messages


class _History:
    def __init__(self, body: CountRequest, limits: Limits, with_rules: bool) -> None:
        self.messages: list[Message] = []
        self._deepest = limits.max_nesting
        self._with_rules = with_rules
        self._names: dict[str, str] = {}
        self._deferred = {tool.name: tool for tool in body.offered_tools() if tool.deferred} if with_rules else {}
        system = client_rules.without_billing(body.system) if with_rules else body.system
        if text := self._plain(system):
            self.messages.append({"role": "system", "content": text})
        # The rule moves nothing behind the first answer, so that the messages that an error can name keep their places.
        order = client_rules.environment_first(body.messages) if with_rules else body.messages
        for place, message in enumerate(order):
            self._add(message, f"messages[{place}]")

    def _add(self, message: InputMessage, field: str) -> None:
        if isinstance(message.content, str):
            self.messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            self.messages.append(self._assistant(message.content, field))
            calls = self.messages[-1].get("tool_calls", ())
            self._names.update((call["id"], call["function"]["name"]) for call in calls)
        else:
            self.messages += self._user(message.role, message.content)

    def _plain(self, content: str | Sequence[Any] | None) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        return "\n".join(map(self._text, client_rules.without_empty(content) if self._with_rules else content))

    def _text(self, block: Any) -> str:
        if isinstance(block, ToolReferenceBlock):
            return client_rules.described(block.tool_name, self._deferred)
        return str(block.text)

    def _assistant(self, blocks: Sequence[Any], field: str) -> Message:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Message] = []
        for place, block in enumerate(blocks):
            match block:
                case TextBlock(text=text):
                    texts.append(text)
                case ThinkingBlock(thinking=thought):
                    thoughts.append(thought)
                case ToolUseBlock():
                    measure.value(f"{field}.content[{place}].input", block.input, self._deepest)
                    function = {"name": block.name, "arguments": block.input}
                    calls.append({"id": block.id, "type": "function", "function": function})
        entry: Message = {"role": "assistant", "content": "".join(texts)}
        if thoughts:
            entry["reasoning_content"] = "".join(thoughts)
        return {**entry, "tool_calls": calls} if calls else entry

    def _user(self, role: str, blocks: Sequence[Any]) -> list[Message]:
        """Results of tools come inside the user's message here, and before it everywhere else."""
        results: list[Message] = []
        for block in blocks:
            if isinstance(block, ToolResultBlock):
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": self._plain(block.content)}
                name = self._names.get(block.tool_use_id)
                results.append({**result, "name": name} if name else result)
        texts = [block for block in blocks if isinstance(block, TextBlock)]
        return [*results, *([{"role": role, "content": self._plain(texts)}] if texts or not results else [])]
