"""Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, in a section.

The model numbers its calls itself; that word is the call's id, and must come back with the tool's answer.
"""

from __future__ import annotations

import re

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import bare_arguments, valid_name
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Markers, Steps, one
from chorus.text.parsers.toolkit.values import ToolSchema

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::(?P<number>\d+))?", re.DOTALL)


class KimiParser(OutlineParser):
    opens = (_SECTION,)
    inner = (_SECTION_END, _CALL, _ARGUMENTS, _CALL_END)
    dropped = ("<|im_end|>",)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.expect(one(_CALL))
        while True:
            yield from self._one()
            self.answer.end_call()
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(Markers((_CALL, _SECTION_END)))) != _CALL:
                return

    def _one(self) -> Steps[None]:
        head = valid_name((yield from self.source.header(_ARGUMENTS)))
        found = _ID.fullmatch(head)
        name = valid_name(found["name"] if found else head)
        self.answer.start(name, head if found and found["number"] else None)
        ended_by = yield from bare_arguments(self.source, self.answer, one(_CALL_END))
        self.answer.end_call()
        if ended_by is None:
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(_CALL_END))


def _call(lark: Lark, tool: ToolSchema) -> str:
    head = lark.join(lark.text(f"{_CALL}functions.{tool.name}:"), "/[0-9]{1,3}/", lark.text(_ARGUMENTS))
    return lark.join(head, lark.json(tool.schema), lark.text(_CALL_END))


FAMILY = ParserFamily(
    name="kimi",
    parser=KimiParser,
    calls=repeated(_call, before=_SECTION, after=_SECTION_END),
    signs=((_SECTION,),),
    needs_special_tokens=True,
    aliases=("kimi_k2",),
)
