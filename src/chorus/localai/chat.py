"""LocalAI's messages, tools and tool choice, as every front end has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chorus.localai.errors import BadRequest
from chorus.localai.requests import json_field, template_arguments
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.requests import measure
from chorus.serving.requests.measure import Amounts
from chorus.serving.requests.request import FieldNames, GenerationRequest
from chorus.serving.requests.tools import NO_TOOLS, Tool, ToolChoice, Tools

FIELDS = FieldNames(
    prompt="Messages",
    stop="StopPrompts",
    logit_bias="LogitBias",
    grammar="Grammar",
    tools="Tools",
    tool_choice="ToolChoice",
)


def read_chat(request: wire.PredictOptions, special_tokens: Mapping[str, str], limits: Amounts) -> GenerationRequest:
    measure.count("Messages", len(request.Messages), limits.max_messages, "messages")
    size = sum(message.ByteSize() for message in request.Messages)
    measure.count("Messages", size, limits.max_body_bytes, "bytes")
    return GenerationRequest(
        tools=read_tools(request, limits),
        messages=[template_message(message, place, limits) for place, message in enumerate(request.Messages)],
        template_arguments=template_arguments(request, dict(special_tokens), limits),
        # LocalAI writes grammars for tools by itself: one that came is all there is to obey, but for a forced call.
        grammar_has_tools=True,
        fields=FIELDS,
    )


def read_tools(request: wire.PredictOptions, limits: Amounts) -> Tools:
    """Two tools of one name are let through here, and a choice where there is no tool."""
    functions = _functions(request.Tools, limits)
    schemas = [each.get("parameters") or {} for each in functions]
    measure.tools("Tools", schemas, sum(len(str(each.get("description", ""))) for each in functions), limits)
    choice = read_choice(request.ToolChoice, limits)
    if choice.kind == "none":
        functions = []
    if choice.kind == "named" and choice.name not in [function["name"] for function in functions]:
        raise BadRequest(f"ToolChoice: there is no tool named {choice.name!r}")
    tools = [
        Tool(each["name"], each.get("description"), each.get("parameters") or None, each.get("strict") is True)
        for each in functions
    ]
    return Tools(tuple(tools), choice) if tools else NO_TOOLS


def _functions(text: str, limits: Amounts) -> list[dict[str, Any]]:
    functions = []
    for place, tool in enumerate(json_field("Tools", text, list, limits) if text.strip() else []):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest(f"Tools[{place}]: expected a function with a name")
        if not isinstance(function.get("parameters") or {}, dict):
            raise BadRequest(f"Tools[{place}]: expected parameters that are a JSON schema, an object")
        functions.append(function)
    return functions


def read_choice(text: str, limits: Amounts) -> ToolChoice:
    """`auto`, `none`, `required`, or the name of a function; LocalAI sends the client's JSON or a bare word."""
    word = text.strip()
    if word.startswith(('"', "{")):
        try:
            choice = measure.decoded("ToolChoice", word, limits.max_nesting)
        except measure.BadField:
            raise
        except ValueError as error:
            raise BadRequest(f"ToolChoice is no JSON: {error}") from None
    else:
        choice = word or "auto"
    if isinstance(choice, dict):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise BadRequest(f"ToolChoice: expected the name of a function, got {word[:60]!r}")
        return ToolChoice("named", name)
    return ToolChoice(choice) if choice in ("none", "auto", "required") else ToolChoice("named", choice)


def template_message(message: wire.Message, place: int, limits: Amounts) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if not message.role:
        raise BadRequest(f"Messages[{place}]: role is empty")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value := getattr(message, name):
            entry[name] = value
    if message.tool_calls.strip():
        calls = json_field(f"Messages[{place}] tool_calls", message.tool_calls, list, limits)
        entry["tool_calls"] = [_template_call(call, place, limits) for call in calls]
    return entry


def _template_call(call: Any, place: int, limits: Amounts) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"Messages[{place}] tool_calls: expected calls with a function and its name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = measure.arguments(f"Messages[{place}] tool_calls", arguments, limits.max_nesting)
    shown = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": shown}
