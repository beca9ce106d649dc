"""A conversation with the model, whichever protocol it came in: its prompt, and how the answer is shaped and read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chorus.api.errors import invalid
from chorus.api.plain_tools import spelled_out
from chorus.api.service import Service, check_grammar
from chorus.api.tools import NO_TOOLS, Toolbox
from chorus.api.wish import Prompt, Reading
from chorus.frontend import grammar as grammars
from chorus.frontend.messages import Grammar
from chorus.text.parsers.pieces import OutputParser

# Longer than any tag that opens a model's reasoning, with the line breaks after it.
_TAIL_TOKENS = 24
# The family of parsers whose models write a header before every part of an answer.
_CHANNELS = "harmony"


@dataclass(frozen=True)
class Conversation:
    messages: list[dict[str, Any]]
    """As chat templates expect them: texts joined, arguments of calls as objects."""
    toolbox: Toolbox = NO_TOOLS
    grammar: Grammar | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_last: bool = False
    """The last message is the beginning of the answer."""
    role_mapping: Mapping[str, str] | None = None

    def size(self) -> int:
        tools = sum(len(str(tool.parameters)) for tool in self.toolbox.tools)
        return tools + sum(len(message["content"]) for message in self.messages)


def thinking_arguments(effort: str | None, thinks: bool | None = None) -> dict[str, Any]:
    """Templates know the effort by one name, and whether to think at all by another."""
    wanted = False if effort == "none" else thinks
    arguments: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return arguments if wanted is None else {**arguments, "enable_thinking": wanted}


def prompt_of(conversation: Conversation, service: Service) -> Prompt:
    tokenizer, messages, tools = service.tokenizer, conversation.messages, conversation.toolbox.for_template()
    if not service.template_shows_tools:
        messages, tools = spelled_out(messages, conversation.toolbox.tools), None
    if conversation.role_mapping is not None:
        text = mapped_text(messages, conversation.role_mapping)
        return Prompt(lambda: tokenizer.encode(text), len(text))
    if not tokenizer.knows_developers:
        messages = [{**entry, "role": "system"} if entry["role"] == "developer" else entry for entry in messages]
    return Prompt(
        lambda: tokenizer.chat_prompt(
            messages,
            tools=tools,
            template_arguments=dict(conversation.template_arguments),
            continue_last=conversation.continue_last,
        ),
        conversation.size(),
    )


def mapped_text(messages: list[dict[str, Any]], mapping: Mapping[str, str]) -> str:
    """A prompt without a template: each message after the text that stands for its role."""
    parts = [mapping["system_prompt"]] if mapping["system_prompt"] else []
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        parts.append(mapping[role] + message["content"] + mapping["stop"])
    return "".join(parts) + mapping["assistant"].rstrip()


async def answer_grammar(conversation: Conversation, service: Service, field: str) -> Grammar | None:
    """What the client asked for, joined with the calls that it forces or allows."""
    toolbox, document = conversation.toolbox, conversation.grammar
    await check_grammar(document, field)
    if document is not None and service.parsers.name == _CHANNELS:
        document = grammars.in_final_channel(document, service.tokenizer.added_tokens)
    if not toolbox.choice.forces and (document is None or not toolbox.tools):
        return document
    for place, tool in enumerate(toolbox.tools):
        await check_grammar(grammars.json_schema(tool.parameters or {}), f"tools[{place}]")
    calls = grammars.forced_calls(
        service.parsers,
        [tool.for_template() for tool in toolbox.tools],
        (toolbox.choice.name and {"name": toolbox.choice.name}) or "required",
        toolbox.parallel,
        service.tokenizer.added_tokens,
    )
    if calls is None:
        raise invalid("tool_choice: it is not known how the served model calls tools.", "tool_choice")
    if toolbox.choice.forces or document is None:
        return calls
    return grammars.either(calls, document)


def reading_of(conversation: Conversation, service: Service, call_ids: Callable[[], str]) -> Reading:
    family, tokenizer = service.parsers, service.tokenizer

    def starts_in_reasoning(prompt: tuple[int, ...]) -> bool:
        return family.opened_by(tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special=False))

    def parser(prompt: tuple[int, ...]) -> OutputParser:
        return family.new(
            tools=conversation.toolbox.for_template(),
            thinks=family.thinks,
            starts_in_reasoning=starts_in_reasoning(prompt),
            id_factory=call_ids,
        )

    def after_reasoning(prompt: tuple[int, ...], grammar: Grammar) -> Grammar:
        tags = family.reasoning
        if tags is None:
            return grammar
        return grammars.after_reasoning(grammar, tags, tokenizer.added_tokens, starts_in_reasoning(prompt))

    return Reading(
        parser=parser,
        show_special=family.needs_special_tokens,
        most_calls=None if conversation.toolbox.parallel else 1,
        grammar_after_reasoning=after_reasoning,
    )


def call_id(prefix: str) -> Callable[[], str]:
    return lambda: prefix + secrets.token_hex(12)
