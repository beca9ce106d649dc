"""A grammar as it travels from a front end to the child that compiles it: text, and what it came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chorus.errors import ChorusError

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf"]


@dataclass(frozen=True)
class GrammarPart:
    name: str
    kind: GrammarKind
    source: str


@dataclass(frozen=True)
class Grammar:
    """What the text of an answer may look like; the engine draws only tokens that it allows."""

    kind: GrammarKind
    source: str
    parts: tuple[GrammarPart, ...] = ()
    """Grammars that the source, or one of them, names with an @."""
    origins: tuple[GrammarPart, ...] = ()
    """What the client sent, by its own names: where there are several, each is tried alone, to name the wrong one."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(text.encode()) for text in (self.source, *(part.source for part in self.parts)))


class GrammarError(ChorusError, ValueError):
    """A grammar cannot be used; the message says why in one line, `field` what the client called it."""

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.field = field

    @property
    def told(self) -> str:
        """The reason, for whoever may not be shown the field."""
        return str(self) if self.field else f"the grammar cannot be used: {self}"


class TooManyGrammars(ChorusError):
    """As many requests with grammars are open as there may be: the same request may succeed later."""


def packed(grammar: Grammar, stop_tokens: Iterable[int], answered: Sequence[int] = ()) -> bytes:
    listed = [[[part.name, part.kind, part.source] for part in some] for some in (grammar.parts, grammar.origins)]
    return json.dumps([grammar.kind, grammar.source, *listed, sorted(stop_tokens), list(answered)]).encode()


def unpacked(message: bytes) -> tuple[Grammar, frozenset[int], list[int]]:
    kind, source, parts, origins, stop_tokens, answered = json.loads(message)
    grammar = Grammar(kind, source, *(tuple(GrammarPart(*part) for part in some) for some in (parts, origins)))
    return grammar, frozenset(stop_tokens), answered
