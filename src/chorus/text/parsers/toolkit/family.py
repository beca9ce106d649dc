"""A family: models that write reasoning and tool calls alike. Makes parsers, and grammars that force a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorus.text.parsers.toolkit.lark import CallsGrammar, Lark
from chorus.text.parsers.toolkit.outline import ParserOptions, tools_by_name
from chorus.text.parsers.toolkit.pieces import OutputParser
from chorus.text.parsers.toolkit.values import ToolSchema

THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class ParserFamily:
    name: str
    parser: Callable[[ParserOptions], OutputParser]
    # None: this family cannot call tools.
    calls: CallsGrammar | None
    # A template belongs here if it holds all strings of one of these groups.
    signs: tuple[tuple[str, ...], ...]
    # True where the markup is made of special tokens, which decoding must then keep.
    needs_special_tokens: bool
    # What opens and closes reasoning; None where the template shows no reasoning.
    reasoning: tuple[str, str] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        return self.reasoning is not None

    def opened_by(self, prompt: str) -> bool:
        """True if the prompt's last word opens the reasoning, so that the answer starts inside it."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0].rstrip())

    def new(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        thinks: bool,
        starts_in_reasoning: bool,
        id_factory: Callable[[], str],
    ) -> OutputParser:
        """Without tools nothing is taken for a call; without reasoning nothing is taken for that."""
        reasoning = (self.reasoning or THINK) if thinks or starts_in_reasoning else None
        return self.parser(ParserOptions(tools_by_name(tools), reasoning, starts_in_reasoning, id_factory))

    def tool_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str | Mapping[str, Any],
        parallel: bool,
        *,
        tokens: Mapping[str, int] | None = None,
        thinks: bool = False,
        starts_in_reasoning: bool = False,
    ) -> tuple[str, str] | None:
        """A grammar, as (kind, source), for an answer that calls: `choice` is "required" or names one function.

        `tokens` are the tokenizer's added tokens by name (special or not). Reasoning before the call stays free.
        """
        if self.calls is None:
            return None
        lark = Lark(tokens or {}, lenient=True)
        calls = self.calls(lark, _chosen(tools, choice), parallel)
        opened, closed = self.reasoning or THINK
        thought = ""
        if starts_in_reasoning:
            thought = lark.join(lark.free_text(closed), r"(/[ \n]+/)?")
        elif thinks:
            thought = f"({lark.join(lark.text(opened), lark.free_text(closed))} (/[ \\n]+/)?)?"
        return "lark", lark.source(lark.join(thought, calls))


def _chosen(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]) -> list[ToolSchema]:
    known = tools_by_name(tools)
    if not known:
        raise ValueError("a call cannot be forced without tools: give tools, or leave tool_choice out")
    if isinstance(choice, str):
        if choice != "required":
            raise ValueError(f"tool_choice {choice!r} forces no call: only 'required' or a named function does")
        return list(known.values())
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if name not in known:
        raise ValueError(f"tool_choice names {name!r}, which is not among the tools: {', '.join(known)}")
    return [known[name]]
