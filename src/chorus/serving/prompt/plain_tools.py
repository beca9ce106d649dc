"""Tools for models whose template has no place for them: described in the system message, called in plain tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chorus.serving.requests.tools import Tool

# The family of parsers that reads what is asked for here.
PARSER = "hermes"

Message = dict[str, Any]


def spelled_out(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The same conversation with tools, calls and results as text."""
    told = [_spelled(message) for message in messages]
    if not tools:
        return told
    if told and told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{_instructions(tools)}"}, *told[1:]]
    return [{"role": "system", "content": _instructions(tools)}, *told]


def _spelled(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [_call(call["function"]) for call in message["tool_calls"]]
    parts = [message["content"], *calls] if message["content"] else calls
    return {"role": "assistant", "content": "\n".join(parts)}


def _call(function: dict[str, Any]) -> str:
    written = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _instructions(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool.for_template()["function"], ensure_ascii=False) for tool in tools)
    example = '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'
    return f"You can call these functions:\n{listed}\nTo call one, write this and nothing else:\n{example}"
