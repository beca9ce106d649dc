"""Llama 3: `<|python_tag|>{"name": …, "parameters": {…}}`, the same object bare, or `<function=name>{…}</function>`.

A bare object is a call only where an answer may begin, and only if it names one of the request's tools.
"""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import JsonCall, bare_arguments, take_name
from chorus.text.parsers.toolkit.lark import json_call, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Markers, Steps, one

_PYTHON_TAG = "<|python_tag|>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_TURN_ENDS = ("<|eom_id|>", "<|eot_id|>")


class Llama3Parser(OutlineParser):
    opens = (_PYTHON_TAG, _FUNCTION)
    opens_at_start = ("{",)
    inner = (_FUNCTION_END,)
    dropped = _TURN_ENDS

    def call(self, opened_by: str) -> Steps[None]:
        if opened_by == _FUNCTION:
            yield from self._function()
            return
        only = self.request.tools if opened_by == "{" else None
        opened = opened_by == "{"
        while True:
            ended_by = yield from JsonCall(self.source, self.answer, Markers(_TURN_ENDS), only).read(opened=opened)
            self.answer.end_call()
            if ended_by is not None:
                return
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(";"))
            yield from self.source.skip_space()
            if not (opened := bool((yield from self.source.take_marker(one("{"))))):
                return

    def _function(self) -> Steps[None]:
        name = yield from take_name(self.source)
        yield from self.source.expect(one(">"))
        self.answer.start(name)
        ended_by = yield from bare_arguments(self.source, self.answer, one(_FUNCTION_END))
        self.answer.end_call()
        if ended_by is None:
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(_FUNCTION_END))


FAMILY = ParserFamily(
    name="llama3",
    parser=Llama3Parser,
    calls=repeated(json_call("name", "parameters"), between="; "),
    signs=((_PYTHON_TAG,), ("<|start_header_id|>", "parameters")),
    needs_special_tokens=True,
    aliases=("llama", "llama3_json"),
)
