"""How the served model writes reasoning and tool calls, and grammars that hold it to that."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chorus.messages.grammar import Grammar
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.requests import grammar as grammars
from chorus.serving.requests.tool_grammar import (
    CHANNELS,
    CannotEnforce,
    call_marks,
    check_enforceable,
    forced_calls,
    strict_calls,
)
from chorus.serving.requests.tools import Tools
from chorus.text.parsers import ParserFamily
from chorus.text.parsers.toolkit.pieces import OutputParser

# Longer than any tag that opens a model's reasoning, with the line breaks after it.
_TAIL_TOKENS = 24


class CannotForce(CannotEnforce):
    """A call is asked for, and it is not known how the served model makes one."""


@dataclass(frozen=True)
class AnswerFormat:
    """The parser family of the served model, with the tokenizer that its marks are written in."""

    family: ParserFamily
    tokenizer: ServedTokenizer

    def starts_in_reasoning(self, prompt: Sequence[int]) -> bool:
        return self.family.opened_by(self.tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special=False))

    def parser(self, tools: Tools, prompt: Sequence[int], call_ids: Callable[[], str]) -> OutputParser:
        return self.family.new(
            tools=tools.for_template() or None,
            thinks=self.family.thinks,
            starts_in_reasoning=self.starts_in_reasoning(prompt),
            id_factory=call_ids,
        )

    def after_reasoning(self, grammar: Grammar, tools: Tools, prompt: Sequence[int]) -> Grammar:
        """The model may think first, but not begin a call inside a thought where that would count as one."""
        if self.family.reasoning is None:
            return grammar
        marks = call_marks(self.family) if tools.functions else ()
        tokens, inside = self.tokenizer.added_tokens, self.starts_in_reasoning(prompt)
        return grammars.after_reasoning(grammar, self.family.reasoning, tokens, inside, marks)

    def grammar(self, tools: Tools, document: Grammar | None) -> Grammar | None:
        """What the client asked for, joined with the calls that it forces or allows."""
        tokens = self.tokenizer.added_tokens
        if document is not None and self.family.name == CHANNELS:
            document = grammars.in_final_channel(document, tokens)
        if not tools.functions:
            return document
        if tools.strict:
            check_enforceable(self.family)
        shown, forced = tools.for_template(), tools.forced
        if forced is None and document is None:
            return strict_calls(self.family, shown, tools.strict, tools.parallel, tokens) if tools.strict else None
        calls = forced_calls(self.family, shown, forced or "required", tools.parallel, tokens, tools.strict)
        if calls is None:
            raise CannotForce("it is not known how the served model calls tools")
        return calls if forced or document is None else grammars.either(calls, document)


def call_id(prefix: str) -> Callable[[], str]:
    return lambda: prefix + secrets.token_hex(12)
