"""A conversation with the model, whichever protocol it came in: its prompt, and the grammar of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chorus.messages.grammar import Grammar, GrammarPart
from chorus.serving.prompt.answer_format import AnswerFormat, CannotForce
from chorus.serving.prompt.branches import branches
from chorus.serving.prompt.remembered import AnswerMemory
from chorus.serving.prompt.rendering import rendered, template_messages
from chorus.serving.prompt.resumed import resumed_prompt
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.prompt.tokens import Prompt, cut_prompt
from chorus.serving.requests import grammar as grammars
from chorus.serving.requests import measure
from chorus.serving.requests.measure import InvalidValue, TooMuch, Unsupported
from chorus.serving.requests.request import GenerationRequest, Message
from chorus.serving.requests.tool_grammar import CannotEnforce
from chorus.serving.workers import Workers
from chorus.text.parsers.toolkit.lark import TooLarge

_EMPTY_MESSAGE = 16


class NoCalls(InvalidValue):
    """A call is asked for, and it is not known how the served model makes one."""


def thinking_arguments(effort: str | None, thinks: bool | None = None) -> dict[str, Any]:
    """Templates know the effort by one name, and whether to think at all by another."""
    wanted = False if effort == "none" else thinks
    arguments: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return arguments if wanted is None else {**arguments, "enable_thinking": wanted}


def conversation_size(request: GenerationRequest) -> int:
    """About how many characters the template will write, and more than few where it has much to go through."""
    tools = sum(len(str(tool.description or "")) + len(str(tool.parameters)) for tool in request.tools.functions)
    return tools + len(str(request.template_arguments)) + sum(map(_length, request.messages or ()))


def _length(message: Message) -> int:
    calls = len(str(message["tool_calls"])) if "tool_calls" in message else 0
    return _EMPTY_MESSAGE + len(message["content"]) + len(message.get("reasoning_content", "")) + calls


def conversation_tokens(
    request: GenerationRequest, tokenizer: ServedTokenizer, memory: AnswerMemory | None = None
) -> Prompt:
    """With a memory, the answers in it that come back are the tokens that the model wrote."""
    if request.role_mapping is not None:
        return Prompt(tuple(tokenizer.encode(mapped_text(template_messages(request, tokenizer), request.role_mapping))))
    told = rendered(request, tokenizer)
    places = branches(
        told.text, told.messages, told.history, continues=request.continue_last, calls=bool(request.tools.functions)
    )
    if memory is None:
        return cut_prompt(told.text, places, tokenizer)
    return resumed_prompt(request, told, places, memory, tokenizer)


def mapped_text(messages: Sequence[Message], mapping: Mapping[str, str]) -> str:
    """A prompt without a template: each message after the text that stands for its role."""
    parts = [mapping["system_prompt"]] if mapping["system_prompt"] else []
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        parts.append(mapping[role] + message["content"] + mapping["stop"])
    return "".join(parts) + mapping["assistant"].rstrip()


async def answer_grammar(request: GenerationRequest, form: AnswerFormat, workers: Workers) -> Grammar | None:
    """What the client asked for, joined with the calls that it forces or allows."""
    tools, document, fields = request.tools, request.grammar, request.fields
    if document is not None and request.grammar_has_tools:
        if not tools.forced:
            return document
        document = None
    origins = tuple(_origins(request, document))
    try:
        size = sum(len(str(tool.parameters)) for tool in tools.functions)
        grammar = await workers.run(size, lambda: form.grammar(tools, document))
    except TooLarge as error:
        raise TooMuch(fields.tools, str(error)) from None
    except CannotForce as error:
        raise NoCalls(fields.tool_choice, str(error)) from None
    except CannotEnforce as error:
        strict = [place for place, tool in enumerate(tools.functions) if tool.strict]
        place = next((place for place in strict if tools.functions[place].name == error.tool), strict[0])
        problem = f"strict cannot be enforced: {error}; leave strict out"
        raise Unsupported(f"{fields.tools}[{place}]", problem) from None
    return grammar and replace(grammar, origins=origins)


def _origins(request: GenerationRequest, document: Grammar | None) -> Iterator[GrammarPart]:
    """What the grammar is made of, so that an error about it names the field."""
    tools, fields = request.tools, request.fields
    if document is not None:
        yield GrammarPart(fields.grammar, document.kind, document.source)
    for place, tool in enumerate(tools.functions):
        if tool.strict or tools.forced or document is not None:
            measure.well_formed(f"{fields.tools}[{place}]", tool.parameters or {})
            schema = grammars.json_schema(tool.parameters or {})
            yield GrammarPart(f"{fields.tools}[{place}]", schema.kind, schema.source)
