"""A conversation with a model in any protocol: roles that its template knows, its calls, and where its thoughts end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorus.messages.grammar import Grammar
from chorus.serving import grammar as grammars
from chorus.serving.tokenizer import ServedTokenizer
from chorus.serving.tool_grammar import (
    CHANNELS,
    CannotEnforce,
    call_marks,
    check_enforceable,
    forced_calls,
    strict_calls,
)
from chorus.text.parsers import ParserFamily
from chorus.text.parsers.toolkit.pieces import OutputParser

# Longer than any tag that opens a model's reasoning, with the line breaks after it.
_TAIL_TOKENS = 24


class CannotForce(CannotEnforce):
    """A call is asked for, and it is not known how the served model makes one."""


@dataclass(frozen=True)
class Offer:
    """The tools of one answer, and how free the model is with them."""

    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's form, which is the one that chat templates are written for."""
    forced: str | Mapping[str, str] | None = None
    """`required`, or the name of the one tool to call."""
    strict: frozenset[str] = frozenset()
    """The tools whose arguments must be as their schema says, whenever the model calls them."""
    parallel: bool = True


@dataclass(frozen=True)
class Voice:
    """How the served model speaks."""

    family: ParserFamily
    tokenizer: ServedTokenizer

    def starts_in_reasoning(self, prompt: Sequence[int]) -> bool:
        return self.family.opened_by(self.tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special=False))

    def parser(self, offer: Offer, prompt: Sequence[int], call_ids: Callable[[], str]) -> OutputParser:
        return self.family.new(
            tools=offer.tools or None,
            thinks=self.family.thinks,
            starts_in_reasoning=self.starts_in_reasoning(prompt),
            id_factory=call_ids,
        )

    def after_thought(self, grammar: Grammar, offer: Offer, prompt: Sequence[int]) -> Grammar:
        """The model may think first, but not begin a call inside a thought where that would count as one."""
        if self.family.reasoning is None:
            return grammar
        marks = call_marks(self.family) if offer.tools else ()
        tokens, inside = self.tokenizer.added_tokens, self.starts_in_reasoning(prompt)
        return grammars.after_reasoning(grammar, self.family.reasoning, tokens, inside, marks)

    def grammar(self, offer: Offer, document: Grammar | None) -> Grammar | None:
        """What the client asked for, joined with the calls that it forces or allows."""
        tokens = self.tokenizer.added_tokens
        if document is not None and self.family.name == CHANNELS:
            document = grammars.in_final_channel(document, tokens)
        if not offer.tools:
            return document
        if offer.strict:
            check_enforceable(self.family)
        if offer.forced is None and document is None:
            if not offer.strict:
                return None
            return strict_calls(self.family, offer.tools, offer.strict, offer.parallel, tokens)
        forced = offer.forced or "required"
        calls = forced_calls(self.family, offer.tools, forced, offer.parallel, tokens, offer.strict)
        if calls is None:
            raise CannotForce("it is not known how the served model calls tools")
        return calls if offer.forced or document is None else grammars.either(calls, document)


def with_known_roles(messages: list[dict[str, Any]], tokenizer: ServedTokenizer) -> list[dict[str, Any]]:
    """Where the template has no place for developers, they are the system."""
    if tokenizer.knows_developers:
        return messages
    return [{**entry, "role": "system"} if entry["role"] == "developer" else entry for entry in messages]


def call_id(prefix: str) -> Callable[[], str]:
    return lambda: prefix + secrets.token_hex(12)
