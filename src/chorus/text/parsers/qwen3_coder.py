"""Qwen3 Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, on many lines.

The outer pair is left out by the model at times; a function alone is a call too.
"""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Steps, one
from chorus.text.parsers.toolkit.tagged import TaggedArguments, Tags, plain_name
from chorus.text.parsers.toolkit.tagged_grammar import Writing, arguments_grammar
from chorus.text.parsers.toolkit.values import ToolSchema

_OPEN, _CLOSE, _FUNCTION = "<tool_call>", "</tool_call>", "<function="
_TAGS = Tags(parameter="<parameter=", header_end=">", value_end="</parameter>", call_end="</function>", own_lines=True)


class Qwen3CoderParser(OutlineParser):
    opens = (_OPEN, _FUNCTION)
    inner = (_CLOSE, _TAGS.parameter, _TAGS.value_end, _TAGS.call_end)

    def call(self, opened_by: str) -> Steps[None]:
        if opened_by == _OPEN:
            yield from self.source.expect(one(_FUNCTION))
        header = yield from self.source.header(">")
        name = plain_name(header)
        self.answer.start(name)
        yield from TaggedArguments(self.source, self.answer, _TAGS, self.request.tools.get(name)).read()
        self.answer.end_call()
        yield from self.source.skip_space()
        yield from self.source.take_marker(one(_CLOSE))


_WRITING = Writing(_TAGS, lambda name, kind: (f"{_TAGS.parameter}{name}>\n",), between="\n")


def _call(lark: Lark, tool: ToolSchema) -> str:
    arguments = arguments_grammar(lark, tool, _WRITING)
    head = lark.text(f"{_OPEN}\n{_FUNCTION}{tool.name}>\n")
    return lark.join(head, arguments, lark.text(f"{_TAGS.call_end}\n{_CLOSE}"))


FAMILY = ParserFamily(
    name="qwen3_coder",
    parser=Qwen3CoderParser,
    calls=repeated(_call, between="\n"),
    signs=((_FUNCTION, _TAGS.parameter),),
    needs_special_tokens=False,
    aliases=("qwen3_xml",),
)
