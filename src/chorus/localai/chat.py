"""LocalAI's messages, tools and tool choice, as the chat template and the answer's parser take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorus.localai.errors import BadRequest
from chorus.localai.requests import json_field, template_arguments
from chorus.messages.grammar import Grammar
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving import measure
from chorus.serving.grammar import sent_as
from chorus.serving.measure import Amounts
from chorus.serving.prompt.voice import CannotForce, Offer, Voice, call_id, with_known_roles
from chorus.serving.tokenizer import ServedTokenizer
from chorus.serving.tool_grammar import CannotEnforce
from chorus.text.errors import TextError
from chorus.text.parsers import ParserFamily
from chorus.text.parsers.toolkit.lark import TooLarge
from chorus.text.parsers.toolkit.pieces import OutputParser


@dataclass(frozen=True)
class Chat:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    """In OpenAI's form; empty where the model may call nothing."""
    forced: str | Mapping[str, str] | None
    """`required`, or the name of the one tool to call."""
    arguments: dict[str, Any]
    strict: frozenset[str] = frozenset()
    """Names of the tools whose arguments must be as their schema says."""

    def offer(self) -> Offer:
        return Offer(self.tools, self.forced, self.strict)


def read_chat(request: wire.PredictOptions, special_tokens: Mapping[str, str], limits: Amounts) -> Chat:
    measure.count("Messages", len(request.Messages), limits.max_messages, "messages")
    size = sum(message.ByteSize() for message in request.Messages)
    measure.count("Messages", size, limits.max_body_bytes, "bytes")
    tools = read_tools(request.Tools, limits)
    choice = read_choice(request.ToolChoice, limits)
    if choice == "none":
        tools = []
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(choice, Mapping) and choice["name"] not in names:
        raise BadRequest(f"ToolChoice: there is no tool named {choice['name']!r}")
    return Chat(
        messages=[template_message(message, place, limits) for place, message in enumerate(request.Messages)],
        tools=tools,
        forced=choice if tools and choice not in ("none", "auto") else None,
        arguments=template_arguments(request, dict(special_tokens), limits),
        strict=strict_tools(request.Tools, limits).intersection(names),
    )


def strict_tools(text: str, limits: Amounts) -> frozenset[str]:
    return frozenset(function["name"] for function in _functions(text, limits) if function.get("strict") is True)


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


def read_tools(text: str, limits: Amounts) -> list[dict[str, Any]]:
    tools = []
    functions = _functions(text, limits)
    schemas = [each.get("parameters") or {} for each in functions]
    measure.tools("Tools", schemas, sum(len(str(each.get("description", ""))) for each in functions), limits)
    for function in functions:
        shown = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
        shown["parameters"] = function.get("parameters") or {"type": "object", "properties": {}}
        tools.append({"type": "function", "function": shown})
    return tools


def read_choice(text: str, limits: Amounts) -> str | Mapping[str, str]:
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
        return {"name": name}
    return choice if choice in ("none", "auto", "required") else {"name": choice}


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


def chat_prompt(chat: Chat, tokenizer: ServedTokenizer) -> list[int]:
    messages = with_known_roles(chat.messages, tokenizer)
    try:
        return tokenizer.chat_prompt(messages, tools=chat.tools or None, template_arguments=chat.arguments)
    except TextError as error:
        raise BadRequest(f"Messages: {error}") from None


def answer_parser(chat: Chat, prompt: Sequence[int], family: ParserFamily, tokenizer: ServedTokenizer) -> OutputParser:
    return Voice(family, tokenizer).parser(chat.offer(), prompt, call_id("call_"))


def answer_grammar(
    chat: Chat, asked: Grammar | None, prompt: Sequence[int], family: ParserFamily, tokenizer: ServedTokenizer
) -> Grammar | None:
    """What the client asked for, or the calls that it forces or wants strict; the model may think first."""
    voice, offer = Voice(family, tokenizer), chat.offer()
    for place, tool in enumerate(chat.tools if chat.forced or chat.strict else ()):
        measure.well_formed(f"Tools[{place}]", tool["function"]["parameters"])
    try:
        # LocalAI writes grammars for tools by itself: one that came is all there is to obey, but for a forced call.
        calls = None if asked and not chat.forced else voice.grammar(offer, None)
    except TooLarge as error:
        raise BadRequest(f"Tools: {error}") from None
    except CannotForce as error:
        raise BadRequest(f"ToolChoice: {error}; use auto") from None
    except CannotEnforce as error:
        raise BadRequest(f"Tools: strict cannot be enforced: {error}; leave strict out") from None
    grammar = sent_as(calls, "Tools") if calls else asked
    return grammar and voice.after_thought(grammar, offer, prompt)
