"""A conversation with the model, whichever protocol it came in: its prompt, and how the answer is shaped and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chorus.api.errors import invalid
from chorus.api.service import Service
from chorus.api.wish import Prompt, Reading
from chorus.messages.grammar import Grammar, Part
from chorus.serving import grammar as grammars
from chorus.serving import measure
from chorus.serving.prompt.plain_tools import spelled_out
from chorus.serving.prompt.roles import orders
from chorus.serving.prompt.tools import NO_TOOLS, Toolbox
from chorus.serving.prompt.voice import CannotForce, with_known_roles
from chorus.serving.tokenizer import ServedTokenizer
from chorus.serving.tool_grammar import CannotEnforce
from chorus.text.errors import TemplateError
from chorus.text.parsers.toolkit.lark import TooLarge

_EMPTY_MESSAGE = 16


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
        """About how many characters the template will write, and more than few where it has much to go through."""
        tools = sum(len(tool.description or "") + len(str(tool.parameters)) for tool in self.toolbox.tools)
        return tools + len(str(self.template_arguments)) + sum(map(_length, self.messages))


def _length(message: dict[str, Any]) -> int:
    calls = len(str(message["tool_calls"])) if "tool_calls" in message else 0
    return _EMPTY_MESSAGE + len(message["content"]) + len(message.get("reasoning_content", "")) + calls


def thinking_arguments(effort: str | None, thinks: bool | None = None) -> dict[str, Any]:
    """Templates know the effort by one name, and whether to think at all by another."""
    wanted = False if effort == "none" else thinks
    arguments: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return arguments if wanted is None else {**arguments, "enable_thinking": wanted}


def prompt_of(conversation: Conversation, service: Service) -> Prompt:
    return Prompt(lambda: prompt_tokens(conversation, service), conversation.size())


def prompt_tokens(conversation: Conversation, service: Service) -> list[int]:
    tokenizer, messages, tools = service.tokenizer, conversation.messages, conversation.toolbox.for_template()
    if not service.template_shows_tools:
        messages, tools = spelled_out(messages, conversation.toolbox.tools), None
    if conversation.role_mapping is not None:
        return tokenizer.encode(mapped_text(messages, conversation.role_mapping))
    return rendered(conversation, with_known_roles(messages, tokenizer), tools, tokenizer)


def rendered(
    conversation: Conversation,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    tokenizer: ServedTokenizer,
) -> list[int]:
    """In the order that was sent where the template takes it; its objection is to what was sent."""
    objection: TemplateError | None = None
    for shape in orders(messages):
        try:
            return tokenizer.chat_prompt(
                shape,
                tools=tools,
                template_arguments=dict(conversation.template_arguments),
                continue_last=conversation.continue_last,
            )
        except TemplateError as error:
            objection = objection or error
    assert objection is not None
    raise objection


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
    for place, tool in enumerate(toolbox.tools):
        if tool.strict or toolbox.choice.forces or document is not None:
            measure.well_formed(f"tools[{place}]", tool.parameters or {})
    try:
        size = sum(len(str(tool.parameters)) for tool in toolbox.tools)
        grammar = await service.workers.run(size, lambda: service.voice.grammar(toolbox.offer(), document))
    except TooLarge as error:
        raise invalid(f"tools: {error}.", "tools", "limit_exceeded") from None
    except CannotForce as error:
        raise invalid(f"tool_choice: {error}.", "tool_choice") from None
    except CannotEnforce as error:
        strict = [place for place, tool in enumerate(toolbox.tools) if tool.strict]
        place = next((place for place in strict if toolbox.tools[place].name == error.tool), strict[0])
        message = f"tools[{place}]: strict cannot be enforced: {error}; leave strict out."
        raise invalid(message, f"tools[{place}]", "unsupported_parameter") from None
    return grammar and replace(grammar, origins=tuple(_origins(conversation, field)))


def _origins(conversation: Conversation, field: str) -> Iterator[Part]:
    toolbox, document = conversation.toolbox, conversation.grammar
    if document is not None:
        yield Part(field, document.kind, document.source)
    for place, tool in enumerate(toolbox.tools):
        if tool.strict or toolbox.choice.forces or document is not None:
            schema = grammars.json_schema(tool.parameters or {})
            yield Part(f"tools[{place}]", schema.kind, schema.source)


def reading_of(conversation: Conversation, service: Service, call_ids: Callable[[], str]) -> Reading:
    voice, offer = service.voice, conversation.toolbox.offer()
    return Reading(
        parser=lambda prompt: voice.parser(offer, prompt, call_ids),
        show_special=voice.family.needs_special_tokens,
        most_calls=None if offer.parallel else 1,
        grammar_after_reasoning=lambda prompt, grammar: voice.after_thought(grammar, offer, prompt),
    )
