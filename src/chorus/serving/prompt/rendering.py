"""A conversation as the model's template writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chorus.serving.prompt.branches import Render
from chorus.serving.prompt.plain_tools import spelled_out
from chorus.serving.prompt.roles import orders
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.requests.request import GenerationRequest, Message
from chorus.text.errors import TemplateError


@dataclass(frozen=True)
class Rendering:
    text: str
    """The prompt."""
    messages: Sequence[Message]
    """What it was made of: the conversation in a shape that the template takes."""
    history: Render
    """Writes another conversation with the same tools, without the beginning of an answer."""


def template_messages(request: GenerationRequest, tokenizer: ServedTokenizer) -> list[Message]:
    """In the roles that the template has a place for."""
    messages = list(request.messages or ())
    if not tokenizer.shows_tools:
        messages = spelled_out(messages, request.tools.leading)
    if request.role_mapping is not None or tokenizer.knows_developers:
        return messages
    return [{**entry, "role": "system"} if entry["role"] == "developer" else entry for entry in messages]


def rendered(request: GenerationRequest, tokenizer: ServedTokenizer) -> Rendering:
    """In the order that was sent where the template takes it; its objection is to what was sent."""
    leading = request.tools.leading if tokenizer.shows_tools else ()
    tools = [tool.for_template() for tool in leading] or None

    def write(messages: list[Message], *, continue_last: bool = False, for_answer: bool = True) -> str:
        arguments: dict[str, Any] = dict(request.template_arguments)
        return tokenizer.chat_text(
            messages,
            tools=tools,
            template_arguments=arguments,
            continue_last=continue_last,
            for_answer=for_answer,
        )

    objection: TemplateError | None = None
    for shape in orders(template_messages(request, tokenizer)):
        try:
            text = write(shape, continue_last=request.continue_last)
        except TemplateError as error:
            objection = objection or error
        else:
            return Rendering(text, shape, lambda messages: write(messages, for_answer=False))
    assert objection is not None
    raise objection
