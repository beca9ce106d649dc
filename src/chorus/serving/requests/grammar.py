"""Grammars that clients ask for, made from what they sent; whether they can be used is found out by the engine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chorus.messages.grammar import Grammar, GrammarPart
from chorus.text.parsers.toolkit.lark import Lark

_RULE_NAME = re.compile(r"[\w-]+")
# One space, or a line break with its indentation: all that printed JSON needs.
_SPACE = r"(\n[ \t]{0,16}|[ ])?"


def json_object() -> Grammar:
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(tidy(schema)))


def tidy(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without a bound on the space between values, a hot sampler can fill an answer with nothing but space."""
    return {"x-guidance": {"whitespace_pattern": _SPACE}, **schema}


def regex(pattern: str) -> Grammar:
    return Grammar("regex", pattern)


def one_of(choices: Sequence[str]) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))


def rules(source: str) -> Grammar:
    """Lark as llguidance reads it, or llama.cpp's GBNF, told apart by how a rule is written."""
    heads = (head.strip() for head, mark, _ in (line.partition("::=") for line in source.splitlines()) if mark)
    return Grammar("gbnf" if any(map(_RULE_NAME.fullmatch, heads)) else "lark", source)


def sent_as(grammar: Grammar, field: str) -> Grammar:
    """An error about it names the field."""
    return replace(grammar, origins=(GrammarPart(field, grammar.kind, grammar.source),))


def either(first: Grammar, second: Grammar) -> Grammar:
    """A text that one of the two allows."""
    return _composed("start: @first | @second", first=first, second=second)


class FreeText(Lark):
    """Adds text in which some marks do not occur. Text cannot hold a mark that is a token, but could spell it."""

    def without(self, marks: Sequence[str], *, not_first: Sequence[str] = ()) -> str:
        """A text of one character or more; `not_first` may not stand at its beginning, nor after space there."""
        any_text = "(?s:.*)"
        patterns = [f"{any_text}{_any_of(marks)}{any_text}"] if marks else []
        patterns += [rf"\s*{_any_of(not_first)}{any_text}"] if not_first else []
        name = f"TEXT{len(self._rules)}"
        self._rules.append(f"{name}: /(?s:.+)/" + "".join(f" & ~/{pattern}/" for pattern in patterns))
        return name

    def up_to(self, end: str, text: str) -> str:
        """The text, if there is any, and what ends it."""
        if self._split and self._split.match(end):
            # Not as a subclass may write it: what ends a text always stands there in full.
            return self.join(f"({text})?", Lark.text(self, end))
        return self.rule(f'{text} | ""', f"[suffix={json.dumps(end)}]")


def _any_of(marks: Sequence[str]) -> str:
    return "(" + "|".join(re.escape(mark).replace("/", r"\/") for mark in marks) + ")"


def after_reasoning(
    grammar: Grammar,
    tags: tuple[str, str],
    tokens: Mapping[str, int],
    already_open: bool,
    without: Sequence[str] = (),
) -> Grammar:
    """What a model thinks stays free, but for the marks `without`; the grammar holds for what comes after. `tokens` are
    the added ones by name."""
    lark = FreeText(tokens)
    opened, closed = tags
    inner = lark.up_to(closed, lark.without(without)) if without else lark.free_text(closed)
    thought = f"{inner} (/[ \\n]+/)?"
    if not already_open:
        thought = f"({lark.text(opened)} {thought})?"
    return _composed(lark.source(f"{thought} @answer"), answer=grammar)


def in_final_channel(grammar: Grammar, tokens: Mapping[str, int]) -> Grammar:
    """For models that put every part of an answer into a channel (gpt-oss): the header first, then the grammar."""
    lark = Lark(tokens)
    again, header = lark.text("<|start|>assistant"), lark.text("<|channel|>final<|message|>")
    return _composed(lark.source(f"({again})? {header} @answer"), answer=grammar)


def _composed(lark: str, **named: Grammar) -> Grammar:
    """Parts are named by what they hold, so that a composition can be part of another one."""
    parts: dict[str, GrammarPart] = {}
    origins: list[GrammarPart] = []
    for name, grammar in named.items():
        own = f"{name}_{hashlib.sha256(grammar.source.encode()).hexdigest()[:12]}"
        lark = lark.replace(f"@{name}", f"@{own}")
        parts |= {part.name: part for part in (GrammarPart(own, grammar.kind, grammar.source), *grammar.parts)}
        origins += grammar.origins
    return Grammar("lark", lark, tuple(parts.values()), tuple(origins))
