"""LFM2 and others that call as Python does: `<|tool_call_start|>[name(key="value", n=1)]<|tool_call_end|>`."""

from __future__ import annotations

from chorus.text.parsers.family import ParserFamily
from chorus.text.parsers.jsoncall import take_name
from chorus.text.parsers.lark import Lark, repeated
from chorus.text.parsers.outline import OutlineParser
from chorus.text.parsers.source import CutOff, Malformed, Markers, Steps, one
from chorus.text.parsers.values import NO_VALUE, Tool, dumped, parsed, python_literal, quoted, types_of

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
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
            value = yield from self._value()
            self.answer.arguments(f"{lead}{quoted(key)}: {self._as_json(value, name, key)}")
            lead = ", "
            yield from self.source.take_marker(one(","))

    def _value(self) -> Steps[str]:
        """Up to the comma or bracket that ends it, neither of which counts inside a string or deeper brackets."""
        text = ""
        closers: list[str] = []
        while True:
            character = yield from self.source.peek()
            if not character:
                raise CutOff
            if not closers and character in ",)":
                return text
            if closers and character == closers[-1]:
                closers.pop()
            elif character in _OPENERS:
                closers.append(_OPENERS[character])
            elif character in ")]}":
                raise Malformed
            text += self.source.take(1)
            if character in "\"'":
                text += yield from self._string(character)

    def _string(self, mark: str) -> Steps[str]:
        text = ""
        while True:
            character = yield from self.source.peek()
            if not character:
                raise CutOff
            self.source.take(1)
            text += "\\n" if character == "\n" else character
            if character == mark:
                return text
            if character == "\\":
                if not (yield from self.source.peek()):
                    raise CutOff
                text += self.source.take(1)

    def _as_json(self, text: str, tool: str, parameter: str) -> str:
        types = types_of(self.request.tools.get(tool), parameter)
        value = parsed(text)
        if value is NO_VALUE:
            value = python_literal(text)
        if value is NO_VALUE:
            return quoted(text.strip())
        if types == frozenset({"string"}) and not isinstance(value, str):
            return quoted(text.strip())
        return dumped(value)


def _call(lark: Lark, tool: Tool) -> str:
    arguments = [
        (lark.rule(lark.join(lark.text(f"{name}="), lark.json(tool.parameter_schema(name)))), name in tool.required)
        for name in tool.parameters
    ]
    return lark.join(lark.text(f"{tool.name}("), lark.listed(arguments, ", "), lark.text(")"))


FAMILY = ParserFamily(
    name="pythonic",
    parser=PythonicParser,
    calls=repeated(_call, before=f"{_OPEN}[", after=f"]{_CLOSE}", between=", "),
    signs=(("<|tool_list_start|>",), (_OPEN,)),
    needs_special_tokens=True,
    aliases=("lfm2",),
)
