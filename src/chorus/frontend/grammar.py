"""Grammars that clients ask for: made from what they sent, and checked before the engine sees them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from chorus.frontend.messages import Grammar
from chorus.text.parsers.lark import Lark

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_LONGEST_REASON = 300
# One space, or a line break with its indentation: all that printed JSON needs.
_SPACE = r"(\n[ \t]{0,16}|[ ])?"


class GrammarError(ValueError):
    """What the client sent is no grammar; the message says why, in one line."""


def json_object() -> Grammar:
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(tidy(schema), ensure_ascii=False))


def tidy(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without a bound on the space between values, a hot sampler can fill an answer with nothing but space."""
    return {"x-guidance": {"whitespace_pattern": _SPACE}, **schema}


def regex(pattern: str) -> Grammar:
    return Grammar("regex", pattern)


def one_of(choices: Sequence[str]) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))


def rules(source: str) -> Grammar:
    """Lark as llguidance reads it, or llama.cpp's GBNF, told apart by how a rule is written."""
    if not _GBNF_RULE.search(source):
        return Grammar("lark", source)
    try:
        return Grammar("lark", gbnf_to_lark(source))
    except Exception as error:  # the converter raises whatever its own parser trips over
        raise GrammarError(f"not a GBNF grammar: {_one_line(str(error))}") from None


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


def check(grammar: Grammar) -> None:
    if problem := LLMatcher.validate_grammar(_compiled_form(grammar)):
        raise GrammarError(_one_line(problem))


def _compiled_form(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.source)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)
        case "llguidance":
            return grammar.source


def _composed(lark: str, **parts: Grammar) -> Grammar:
    """Parts are named by what they hold, so that a composition can be part of another one."""
    named: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        own = f"{name}_{hashlib.sha256(part.source.encode()).hexdigest()[:12]}"
        lark = lark.replace(f"@{name}", f"@{own}")
        named |= {entry["name"]: entry for entry in _named(own, part)}
    return Grammar("llguidance", json.dumps({"grammars": [{"lark_grammar": lark}, *named.values()]}))


def _named(name: str, grammar: Grammar) -> list[dict[str, Any]]:
    match grammar.kind:
        case "json_schema":
            return [{"name": name, "json_schema": json.loads(grammar.source)}]
        case "regex":
            return _named(name, Grammar("llguidance", LLMatcher.grammar_from_regex(grammar.source)))
        case "lark":
            return [{"name": name, "lark_grammar": grammar.source}]
        case "llguidance":
            first, *rest = json.loads(grammar.source)["grammars"]
            return [{**first, "name": name}, *rest]


def _one_line(text: str) -> str:
    """The library shows the place with lines of source and a pointer; one line of it is enough to find it again."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_REASON else words[: _LONGEST_REASON - 1] + "…"
