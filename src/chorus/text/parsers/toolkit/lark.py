"""A small writer of llguidance grammars in its Lark dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chorus.errors import ChorusError
from chorus.text.parsers.toolkit.values import ToolSchema

_LARGEST = 4 * 1024 * 1024


class TooLarge(ChorusError, ValueError):
    """The grammar of some calls is longer than anybody would read."""


class Lark:
    """Collects rules. `tokens` are the tokenizer's added tokens: markup spelled by one must be that very token,
    because a grammar never matches such a token by its letters. A lenient one lets anything through where a schema says
    what a markup cannot be held to; otherwise that is an error."""

    def __init__(self, tokens: Mapping[str, int], *, lenient: bool = False) -> None:
        self.lenient = lenient
        self._tokens = {name: number for name, number in tokens.items() if name}
        names = sorted(self._tokens, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None
        self._rules: list[str] = []
        self._size = 0

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def rule(self, body: str, options: str = "") -> str:
        return self._add(f"r{len(self._rules)}", f"{options}: {body}")

    def _add(self, name: str, body: str) -> str:
        # Each part of a schema brings its definitions along, so a grammar can be far longer than its schema.
        self._size += len(body)
        if self._size > _LARGEST:
            raise TooLarge(f"as a grammar they have more than {_LARGEST} characters: give them fewer definitions")
        self._rules.append(name + body)
        return name

    def reserve(self) -> str:
        """The name of a rule whose body is given later: it may hold the rule itself."""
        return self.rule("")

    def fill(self, rule: str, body: str) -> None:
        self._rules[int(rule.removeprefix("r"))] = f"{rule}: {body}"

    def text(self, literal: str) -> str:
        """The literal, with the tokens inside it named by their number."""
        parts: list[str] = []
        at = 0
        for found in self._split.finditer(literal) if self._split else ():
            parts += [json.dumps(literal[at : found.start()])] if found.start() > at else []
            parts.append(f"<[{self._tokens[found.group()]}]>")
            at = found.end()
        parts += [json.dumps(literal[at:])] if at < len(literal) else []
        return " ".join(parts)

    def terminal(self, body: str) -> str:
        return self._add(f"T{len(self._rules)}", f": {body}")

    def lines(self, *literals: str) -> str:
        """Literals, each of which may stand on a line of its own."""
        return r' ("\n")? '.join(map(self.text, literals))

    def free_text(self, end: str) -> str:
        """Any text up to `end`, and `end`."""
        return self.ended("/(?s:.*)/", end)

    def ended(self, terminal: str, end: str) -> str:
        """A text up to the first `end`, and `end`. A token in `end` ends the text: letters before it belong to that."""
        token = self._split.search(end) if self._split else None
        if token is None:
            return self.rule(terminal, f"[suffix={json.dumps(end)}]")
        before, rest = end[: token.start()], end[token.start() :]
        text = self.terminal(f"{terminal} {json.dumps(before)}") if before else terminal
        return self.join(text, self.text(rest))

    def json(self, schema: Any) -> str:
        return self.rule(f"%json {json.dumps(schema)}")

    @staticmethod
    def join(*parts: str) -> str:
        return " ".join(part for part in parts if part)

    @staticmethod
    def either(choices: Sequence[str]) -> str:
        return f"({' | '.join(choices)})"

    def listed(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """Parts in order, each with whether it must be there, with a separator between those that are."""
        if not parts:
            return ""
        after = ""
        fresh = ""
        between = self.text(separator)
        for part, required in reversed(parts):
            here = self.join(part, after)
            otherwise = f"({here} | {fresh})" if fresh else f"({here})?"
            fresh = self.rule(here if required else otherwise)
            follow = f"{between} {part}"
            after = self.rule(self.join(follow if required else f"({follow})?", after))
        return fresh


CallsGrammar = Callable[[Lark, Sequence[ToolSchema], bool], str]


def repeated(
    call: Callable[[Lark, ToolSchema], str], before: str = "", after: str = "", between: str = ""
) -> CallsGrammar:
    """The grammar of one call, or of several in a row: the calls may stand in a section of their own."""

    def calls(lark: Lark, tools: Sequence[ToolSchema], parallel: bool) -> str:
        each = lark.rule(lark.either([lark.rule(call(lark, tool)) for tool in tools]))
        more = f"({lark.join(lark.text(between), each)})*" if parallel else ""
        return lark.join(lark.text(before), each, more, lark.text(after))

    return calls


def json_call(
    name_key: str, arguments_key: str, before: str = "", after: str = ""
) -> Callable[[Lark, ToolSchema], str]:
    """`{"name": …, "arguments": …}`, spelled as templates spell it."""

    def call(lark: Lark, tool: ToolSchema) -> str:
        head = f'{before}{{"{name_key}": {json.dumps(tool.name)}, "{arguments_key}": '
        return lark.join(lark.text(head), lark.json(tool.schema), lark.text("}" + after))

    return call


def named_json(before: Callable[[str], str], after: str = "") -> Callable[[Lark, ToolSchema], str]:
    """A name in some markup, and an object of arguments after it."""

    def call(lark: Lark, tool: ToolSchema) -> str:
        return lark.join(lark.text(before(tool.name)), lark.json(tool.schema), lark.text(after))

    return call
