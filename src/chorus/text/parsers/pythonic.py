"""LFM2 and others that call as Python does: `<|tool_call_start|>[name(key="value", n=1)]<|tool_call_end|>`."""

from __future__ import annotations

import re

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import take_name
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.members import ObjectMember, any_members, checked_name, members
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Steps, one
from chorus.text.parsers.toolkit.strings import Inexpressible
from chorus.text.parsers.toolkit.values import (
    NO_VALUE,
    STRING,
    ToolSchema,
    dumped,
    encodable,
    parsed,
    python_literal,
    quoted,
    types_of,
)

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_KEYWORD = re.compile(r"\w+")
_OPENERS = {"(": ")", "[": "]", "{": "}"}


class PythonicParser(OutlineParser):
    opens = (_OPEN,)
    inner = (_CLOSE,)
    dropped = ("<|im_end|>",)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.expect(one("["))
        while True:
            yield from self._one()
            self.answer.end_call()
            if (yield from self.source.expect(Markers((",", "]")))) == "]":
                break
        self.source.commit()
        yield from self.source.skip_space()
        yield from self.source.take_marker(one(_CLOSE))

    def _one(self) -> Steps[None]:
        yield from self.source.skip_space()
        name = yield from take_name(self.source)
        yield from self.source.expect(one("("))
        self.answer.start(name)
        lead = "{"
        while True:
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(one(")"))):
                self.answer.arguments("{}" if lead == "{" else "}")
                return
            key = yield from self.source.take_while(lambda character: character.isalnum() or character == "_")
            yield from self.source.expect(one("="))
            lead += f"{quoted(key)}: "
            parts: list[str] = []
            try:
                yield from self._value(parts)
            except CutOff:
                self.answer.arguments(lead + "".join(parts))
                raise
            self.answer.arguments(lead + self._as_json("".join(parts), name, key))
            lead = ", "
            yield from self.source.take_marker(one(","))

    def _value(self, parts: list[str]) -> Steps[None]:
        """Up to the comma or bracket that ends it, neither of which counts inside a string or deeper brackets."""
        closers: list[str] = []
        while True:
            character = yield from self._next()
            if not closers and character in ",)":
                return
            if closers and character == closers[-1]:
                closers.pop()
            elif character in _OPENERS:
                closers.append(_OPENERS[character])
            elif character in ")]}":
                raise Malformed
            parts.append(self.source.take(1))
            if character in "\"'":
                yield from self._string(character, parts)

    def _string(self, mark: str, parts: list[str]) -> Steps[None]:
        """The rest of a string; a line break written as it is, which Python does not allow, is escaped."""
        while True:
            character = yield from self._next()
            self.source.take(1)
            parts.append("\\n" if character == "\n" else character)
            if character == mark:
                return
            if character == "\\":
                yield from self._next()
                parts.append(self.source.take(1))

    def _next(self) -> Steps[str]:
        if not (character := (yield from self.source.peek())):
            raise CutOff
        return character

    def _as_json(self, text: str, tool: str, parameter: str) -> str:
        types = types_of(self.request.tools.get(tool), parameter)
        value = parsed(text)
        literal = python_literal(text) if value is NO_VALUE else value
        if literal is NO_VALUE or (types == STRING and not isinstance(literal, str)):
            return quoted(text.strip())
        return dumped(literal) if value is NO_VALUE or not encodable(text) else text.strip()


def _call(lark: Lark, tool: ToolSchema) -> str:
    return lark.join(lark.text(f"{checked_name(tool, lark.lenient)}("), _arguments(lark, tool), lark.text(")"))


def _arguments(lark: Lark, tool: ToolSchema) -> str:
    if (schema := any_members(tool, lark.lenient)) is not None:
        argument = lark.rule(lark.join("/[A-Za-z_][A-Za-z0-9_]*/", '"="', lark.json(tool.standing_alone(schema))))
        return f'({argument} (", " {argument})*)?'
    listed = [(_argument(lark, tool, member), member.required) for member in members(tool, lark.lenient)]
    return lark.listed(listed, ", ")


def _argument(lark: Lark, tool: ToolSchema, member: ObjectMember) -> str:
    if not _KEYWORD.fullmatch(member.name) and not lark.lenient:
        raise Inexpressible(f"the name of parameter {member.name!r}: use letters, digits and _")
    value = lark.json(tool.standing_alone(member.schema))
    if tool.types(member.name) == {"boolean"} and set(tool.resolved(member.schema)) <= {"type", "description"}:
        value = lark.either([value, '"True"', '"False"'])  # as models that call like Python write it
    return lark.rule(lark.join(lark.text(f"{member.name}="), value))


FAMILY = ParserFamily(
    name="pythonic",
    parser=PythonicParser,
    calls=repeated(_call, before=f"{_OPEN}[", after=f"]{_CLOSE}", between=", "),
    signs=(("<|tool_list_start|>",), (_OPEN,)),
    needs_special_tokens=True,
    aliases=("lfm2",),
)
