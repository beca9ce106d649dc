"""Grammars for tool calls: those that a client forces, and those that a model makes by itself but must make right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chorus.errors import ChorusError
from chorus.messages.grammar import Grammar
from chorus.serving.requests.grammar import FreeText, tidy
from chorus.text.parsers import ParserFamily
from chorus.text.parsers.toolkit.lark import Lark
from chorus.text.parsers.toolkit.outline import OutlineParser, tools_by_name
from chorus.text.parsers.toolkit.regexes import containing, literal
from chorus.text.parsers.toolkit.strings import Inexpressible
from chorus.text.parsers.toolkit.values import ToolSchema

# The family of parsers whose models write a header before every part of an answer.
CHANNELS = "harmony"
_CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ANY_OBJECT = {"type": "object"}


class CannotEnforce(ChorusError, ValueError):
    """The message says why calls cannot be held to a schema, and what to do; `tool` names the one it is about."""

    def __init__(self, message: str, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


def forced_calls(
    family: ParserFamily,
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    parallel: bool,
    tokens: Mapping[str, int],
    strict: Collection[str] = (),
) -> Grammar | None:
    """Calls in the served model's own markup, as it was trained to write them; None where it is not known how it calls.
    What the markup cannot be held to is let through, but for the tools that `strict` names."""
    tidied = [_with_schema(tool, _schema(tool)) for tool in tools]
    check_expressible(family, tidied, strict)
    made = family.tool_grammar(tidied, choice, parallel, tokens=dict(tokens))
    return Grammar("lark", made[1]) if made else None


def strict_calls(
    family: ParserFamily,
    tools: Sequence[Mapping[str, Any]],
    strict: Collection[str],
    parallel: bool,
    tokens: Mapping[str, int],
) -> Grammar:
    """Free text and, wherever a call begins in it, a call as its tool's schema says; `strict` names the tools whose
    schema counts, the arguments of the others are any object."""
    check_enforceable(family)
    tidied = [_with_schema(tool, _schema(tool) if _name(tool) in strict else _ANY_OBJECT) for tool in tools]
    check_expressible(family, tidied, strict)
    named = list(tools_by_name(tidied).values())
    if family.name == CHANNELS:
        return Grammar("lark", _in_channels(family, named, tokens))
    opening = _opening(family)
    if opening is None:
        return Grammar("lark", _at_start(family, named, parallel, tokens))
    return Grammar("lark", _anywhere(family, named, parallel, tokens, opening))


def check_enforceable(family: ParserFamily) -> None:
    """Raises where a call that the model begins cannot be held to a schema, whatever the schema says."""
    if family.calls is None:
        raise CannotEnforce("it is not known how the served model calls tools")
    if family.name != CHANNELS and _opening(family) is None and not _opens_with(family, _parser(family).opens_at_start):
        raise CannotEnforce(f"calls in the {family.name} format have no beginning that could be told from text")


def check_expressible(family: ParserFamily, tools: Sequence[Mapping[str, Any]], strict: Collection[str]) -> None:
    """Raises for the first strict tool that asks for what the family's markup cannot be held to."""
    if family.calls is None:
        return
    for name, tool in tools_by_name([tool for tool in tools if _name(tool) in strict]).items():
        lark = Lark({})
        try:
            family.calls(lark, [tool], False)
        except Inexpressible as error:
            raise CannotEnforce(
                f"in the {family.name} format of the served model, tool {name!r}: {error}", name
            ) from None


def call_marks(family: ParserFamily) -> tuple[str, ...]:
    """What must not stand in a thought, since the family's parser would take it for a call."""
    if family.name == CHANNELS:
        return _CHANNEL_MARKS
    parser = family.parser
    outlined = isinstance(parser, type) and issubclass(parser, OutlineParser)
    return _parser(family).opens if outlined and _parser(family).call_ends_reasoning else ()


class _Headless(FreeText):
    """Writes calls without the mark that opens them, which was read together with the text before it."""

    def __init__(self, tokens: Mapping[str, int], mark: str) -> None:
        super().__init__(tokens, lenient=True)
        self.heads = 0
        self._mark = mark

    def text(self, literal: str) -> str:
        if self._mark and literal.startswith(self._mark):
            self.heads += 1
            literal = literal[len(self._mark) :]
        return super().text(literal)

    def with_marks(self) -> None:
        """From here on marks are written."""
        self._mark = ""


def _anywhere(
    family: ParserFamily, tools: list[ToolSchema], parallel: bool, tokens: Mapping[str, int], opening: str
) -> str:
    assert family.calls is not None
    lark = _Headless(tokens, opening)
    # Where every call has the opening mark, a further call begins as the first one did: after text.
    in_one_section = parallel and not _opens_each_call(family, opening)
    calls = lark.rule(family.calls(lark, tools, in_one_section))
    lark.with_marks()
    parser = _parser(family)
    plain = lark.terminal(f"/(?s:.*)/ & ~/{containing('|'.join(map(literal, parser.opens)))}/")
    # Spelled by letters, what wraps the parts of an answer is text like any other.
    wrappers = [lark.text(mark) for mark in parser.wraps if any(token in mark for token in tokens)]
    before = f"({plain} {lark.either(wrappers)})*" if wrappers else ""
    more = "(answer)?" if parallel else ""
    answer = f"answer: {lark.join(before, plain)} | {lark.join(before, lark.ended(plain, opening), calls, more)}"
    return lark.source("answer") + answer + "\n"


def _at_start(family: ParserFamily, tools: list[ToolSchema], parallel: bool, tokens: Mapping[str, int]) -> str:
    """Such a call is one only where the answer begins, so text must begin with something else."""
    assert family.calls is not None
    parser = _parser(family)
    lark = FreeText(tokens, lenient=True)
    calls = lark.rule(family.calls(lark, tools, parallel))
    thought = family.reasoning[:1] if family.reasoning else ()
    plain = lark.without((*parser.opens, *parser.dropped, *thought), not_first=parser.opens_at_start)
    return lark.source(f"({plain})? | {calls}")


def _in_channels(family: ParserFamily, tools: list[ToolSchema], tokens: Mapping[str, int]) -> str:
    assert family.calls is not None
    lark = FreeText(tokens, lenient=True)
    calls = lark.rule(family.calls(lark, tools, False))
    plain = lark.without(_CHANNEL_MARKS)
    again = f"({lark.text('<|start|>assistant')})?"

    def message(channel: str) -> str:
        return lark.join(again, lark.text(f"<|channel|>{channel}<|message|>"))

    spoken = lark.either([message("analysis"), message("commentary")])
    before = lark.join(spoken, lark.up_to("<|end|>", plain))
    return lark.source(f"({before})* ({message('final')} ({plain})? | {calls})")


def _parser(family: ParserFamily) -> type[OutlineParser]:
    parser = family.parser
    if not (isinstance(parser, type) and issubclass(parser, OutlineParser)):
        raise CannotEnforce(f"calls in the {family.name} format cannot be told from text")
    return parser


def _opening(family: ParserFamily) -> str | None:
    """The mark with which the family's own calls begin; None where they begin with none."""
    return _opens_with(family, _parser(family).opens)


def _opens_with(family: ParserFamily, marks: Sequence[str]) -> str | None:
    return next((mark for mark in marks if _heads(family, mark)), None)


def _opens_each_call(family: ParserFamily, mark: str) -> bool:
    return _heads(family, mark) > 1


def _heads(family: ParserFamily, mark: str) -> int:
    """How often the grammar of two tools' calls writes the mark: once for a section, or with every call."""
    assert family.calls is not None
    writer = _Headless({}, mark)
    family.calls(writer, (ToolSchema("a"), ToolSchema("b")), True)
    return writer.heads


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool["function"].get("parameters") or {}


def _with_schema(tool: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "parameters": tidy(schema)}}
