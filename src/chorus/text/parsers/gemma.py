"""Gemma: `call:name{key:value,…}` with bare keys and strings between marks of their own.

Gemma 4 nests objects and lists, FunctionGemma writes plain values; one reader serves both.
"""

from __future__ import annotations

from typing import ClassVar

from chorus.text.parsers.gemma_grammar import calls_grammar
from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import take_name
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import CutOff, Malformed, Markers, Steps, one
from chorus.text.parsers.toolkit.values import as_json, escaped, quoted

_DEEPEST = 64
_COLON = one(":")


class GemmaParser(OutlineParser):
    opens = ("<|tool_call>",)
    close: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    inner = ("<tool_call|>", '<|"|>', "call:")
    dropped: ClassVar[tuple[str, ...]] = ("<turn|>",)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        """Gemma 4 may put several calls into one pair of marks."""
        while True:
            yield from self.source.expect(one("call:"))
            name = yield from take_name(self.source)
            yield from self.source.expect(one("{"))
            self.answer.start(name)
            self.answer.arguments("{")
            yield from self._members(_DEEPEST)
            self.answer.end_call()
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(","))
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(one(self.close))):
                return
            if (yield from self.source.peek()) != "c":
                return

    def _members(self, depth: int) -> Steps[None]:
        """Past the opening brace, up to and with the closing one."""
        lead = ""
        while True:
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(one("}"))):
                self.answer.arguments("}")
                return
            key = yield from self._key()
            self.answer.arguments(f"{lead}{quoted(key)}: ")
            yield from self._value(depth - 1)
            lead = ", "
            yield from self._comma_before("}")

    def _key(self) -> Steps[str]:
        if (yield from self.source.take_marker(one(self.quote))):
            key, _ = yield from self.source.collect(one(self.quote))
            yield from self.source.expect(_COLON)
            return key
        key, _ = yield from self.source.collect(_COLON)
        return key.strip().strip('"')

    def _comma_before(self, end: str) -> Steps[None]:
        yield from self.source.skip_space()
        if not (yield from self.source.take_marker(one(","))):
            following = yield from self.source.peek()
            if not following:
                raise CutOff
            if following != end:
                raise Malformed

    def _value(self, depth: int) -> Steps[None]:
        if depth == 0:
            raise Malformed
        yield from self.source.skip_space()
        match (yield from self.source.take_marker(Markers(("{", "[", self.quote)))):
            case "{":
                self.answer.arguments("{")
                yield from self._members(depth)
            case "[":
                yield from self._elements(depth)
            case None:
                yield from self._bare()
            case _:
                self.answer.arguments('"')
                yield from self.source.inside(one(self.quote), lambda text: self.answer.arguments(escaped(text)))
                self.answer.arguments('"')

    def _elements(self, depth: int) -> Steps[None]:
        lead = "["
        while True:
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(one("]"))):
                self.answer.arguments("[]" if lead == "[" else "]")
                return
            self.answer.arguments(lead)
            yield from self._value(depth - 1)
            lead = ", "
            yield from self._comma_before("]")

    def _bare(self) -> Steps[None]:
        text = yield from self.source.take_while(lambda character: character not in ",}]")
        if not (yield from self.source.peek()):
            self.answer.arguments(text)
            raise CutOff
        self.answer.arguments(as_json(text.strip(), None))


class FunctionGemmaParser(GemmaParser):
    opens = ("<start_function_call>",)
    close = "<end_function_call>"
    quote = "<escape>"
    inner = ("<end_function_call>", "<escape>", "call:")
    dropped = ("<start_function_response>", "<end_of_turn>")


GEMMA4 = ParserFamily(
    name="gemma4",
    parser=GemmaParser,
    calls=calls_grammar("<|tool_call>", "<tool_call|>", '<|"|>'),
    signs=(("<|tool_call>", "<tool_call|>"),),
    needs_special_tokens=True,
)

FUNCTION_GEMMA = ParserFamily(
    name="function_gemma",
    parser=FunctionGemmaParser,
    calls=calls_grammar("<start_function_call>", "<end_function_call>", "<escape>"),
    signs=(("<start_function_call>",),),
    needs_special_tokens=True,
)
