"""Hermes, Qwen and the many that follow them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import JsonCall
from chorus.text.parsers.toolkit.lark import json_call, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Steps, one

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(OutlineParser):
    opens = (_OPEN,)
    inner = (_CLOSE,)

    def call(self, opened_by: str) -> Steps[None]:
        ended_by = yield from JsonCall(self.source, self.answer, one(_CLOSE)).read()
        self.answer.end_call()
        if ended_by is None:
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(_CLOSE))  # a stop token in its place is as good an end


FAMILY = ParserFamily(
    name="hermes",
    parser=HermesParser,
    calls=repeated(json_call("name", "arguments", f"{_OPEN}\n", f"\n{_CLOSE}"), between="\n"),
    signs=((_OPEN,),),
    needs_special_tokens=False,
    aliases=("qwen", "json_tools"),
)
