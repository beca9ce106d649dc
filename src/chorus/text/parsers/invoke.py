"""Families that write `<invoke name="…">` and `<parameter name="…">`: MiniMax M2, Muse Spark and MiniCPM5.

MiniMax puts spaces into paths; they are taken out of string arguments of one line that begin as a path does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Malformed, Markers, Steps, one
from chorus.text.parsers.toolkit.tagged import TaggedArguments, Tags, named_by
from chorus.text.parsers.toolkit.tagged_grammar import Writing, arguments_grammar
from chorus.text.parsers.toolkit.values import ToolSchema

_name_of = named_by("name")


class InvokeParser(OutlineParser):
    """Calls in a section; each opens with `invoke` and a name."""

    section_end: ClassVar[str]
    invoke: ClassVar[str]
    tags: ClassVar[Tags]

    def call(self, opened_by: str) -> Steps[None]:
        if opened_by != self.invoke:
            yield from self.source.expect(one(self.invoke))
        while True:
            header = yield from self.source.header(">")
            if not header[:1].isspace():
                raise Malformed
            name = _name_of(header)
            self.answer.start(name)
            yield from TaggedArguments(self.source, self.answer, self.tags, self.request.tools.get(name)).read()
            self.answer.end_call()
            if opened_by == self.invoke:
                return
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(Markers((self.invoke, self.section_end)))) != self.invoke:
                return


class MiniMaxParser(InvokeParser):
    opens = ("<minimax:tool_call>",)
    section_end = "</minimax:tool_call>"
    invoke = "<invoke"
    tags = Tags(
        parameter="<parameter",
        header_end=">",
        value_end="</parameter>",
        call_end="</invoke>",
        name_of=_name_of,
        tidy_paths=True,
    )
    inner = (section_end, invoke, tags.parameter, tags.value_end, tags.call_end)


class MuseSparkParser(InvokeParser):
    opens = ("<atem:function_calls>",)
    section_end = "</atem:function_calls>"
    invoke = "<atem:invoke"
    tags = Tags(
        parameter="<atem:parameter",
        header_end=">",
        value_end="</atem:parameter>",
        call_end="</atem:invoke>",
        name_of=_name_of,
    )
    inner = (section_end, invoke, tags.parameter, tags.value_end, tags.call_end)


class MiniCpmParser(InvokeParser):
    """No section: one function after the other. Values with markup of their own stand in a CDATA block."""

    opens = ("<function",)
    section_end = "</function>"
    invoke = "<function"
    tags = Tags(
        parameter="<param",
        header_end=">",
        value_end="</param>",
        call_end="</function>",
        name_of=_name_of,
        cdata=True,
    )
    inner = (tags.parameter, tags.value_end, tags.call_end)


def _call(tags: Tags, invoke: str, line: str) -> Callable[[Lark, ToolSchema], str]:
    writing = Writing(tags, lambda name, kind: (f'{tags.parameter} name="{name}">',), between=line)

    def call(lark: Lark, tool: ToolSchema) -> str:
        arguments = arguments_grammar(lark, tool, writing)
        return lark.join(lark.text(f'{invoke} name="{tool.name}">{line}'), arguments, lark.text(tags.call_end + line))

    return call


MINIMAX = ParserFamily(
    name="minimax",
    parser=MiniMaxParser,
    calls=repeated(
        _call(MiniMaxParser.tags, "<invoke", "\n"), before="<minimax:tool_call>\n", after="</minimax:tool_call>"
    ),
    signs=(("<minimax:tool_call>",),),
    needs_special_tokens=True,
    aliases=("minimax_m2",),
)

MUSE_SPARK = ParserFamily(
    name="muse_spark",
    parser=MuseSparkParser,
    calls=repeated(
        _call(MuseSparkParser.tags, "<atem:invoke", "\n"),
        before="<atem:function_calls>\n",
        after="</atem:function_calls>",
    ),
    signs=(("<atem:function_calls>",),),
    needs_special_tokens=True,
)

MINICPM = ParserFamily(
    name="minicpm5",
    parser=MiniCpmParser,
    calls=repeated(_call(MiniCpmParser.tags, "<function", "")),
    signs=(('<function name="', '<param name="'),),
    needs_special_tokens=True,
)
