"""Grammars in the form that llguidance reads."""

from __future__ import annotations

import json
from collections.abc import Iterable

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from chorus.messages.grammar import GrammarError, GrammarKind, GrammarPart

_LONGEST_REASON = 300


def llguidance_form(kind: GrammarKind, source: str, parts: Iterable[GrammarPart] = ()) -> str:
    entries = [_entry("", kind, source), *(_entry(part.name, part.kind, part.source) for part in parts)]
    return f'{{"grammars": [{", ".join(entries)}]}}'


def one_line(text: str) -> str:
    """The library shows the place with lines of source and a pointer; one line of it is enough to find it again. Its
    own state, which it may add, is nobody's business."""
    words = " ".join(text.partition("<state>")[0][: 20 * _LONGEST_REASON].split())
    return words if len(words) <= _LONGEST_REASON else words[: _LONGEST_REASON - 1] + "…"


def _entry(name: str, kind: GrammarKind, source: str) -> str:
    named = f'"name": {json.dumps(name)}, ' if name else ""
    if kind == "json_schema":
        return f'{{{named}"json_schema": {source}}}'
    return f'{{{named}"lark_grammar": {json.dumps(_lark(kind, source))}}}'


def _lark(kind: GrammarKind, source: str) -> str:
    match kind:
        case "regex":
            return f"start: /{regex_to_lark(source)}/"
        case "gbnf":
            try:
                return gbnf_to_lark(source)
            except Exception as error:  # the converter raises whatever its own parser trips over
                raise GrammarError(f"not a GBNF grammar: {one_line(str(error))}") from None
        case _:
            return source
