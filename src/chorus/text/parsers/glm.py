"""GLM 4.5 and later, Laguna: `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

LongCat writes the same with a prefix to its tags. Both write a JSON object in place of all that, or of
the arguments, at times.
"""

from __future__ import annotations

from typing import ClassVar

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import JsonCall, bare_arguments, take_name
from chorus.text.parsers.toolkit.lark import CallsGrammar, Lark, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Markers, Steps, one
from chorus.text.parsers.toolkit.tagged import TaggedArguments, Tags
from chorus.text.parsers.toolkit.tagged_grammar import Writing, arguments_grammar
from chorus.text.parsers.toolkit.values import ToolSchema


def _tags(prefix: str) -> Tags:
    return Tags(
        parameter=f"<{prefix}arg_key>",
        header_end=f"</{prefix}arg_key>",
        value_open=f"<{prefix}arg_value>",
        value_end=f"</{prefix}arg_value>",
        call_end=f"</{prefix}tool_call>",
    )


class GlmParser(OutlineParser):
    tags: ClassVar[Tags] = _tags("")
    opens = ("<tool_call>",)
    inner = (tags.parameter, tags.header_end, tags.value_open, tags.value_end, tags.call_end)

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.skip_space()
        if (yield from self.source.take_marker(one("{"))):
            ended_by = yield from JsonCall(self.source, self.answer, one(self.tags.call_end)).read(opened=True)
            yield from self._finish(ended_by)
            return
        name = yield from take_name(self.source)
        # A word that no tag follows was prose about the markup.
        objects = ("{",) if name in self.request.tools else ()
        marker = yield from self.source.expect(Markers((self.tags.parameter, self.tags.call_end, *objects)))
        self.answer.start(name)
        if marker == "{":
            self.source.put_back("{")
            ended_by = yield from bare_arguments(self.source, self.answer, one(self.tags.call_end))
            yield from self._finish(ended_by)
            return
        yield from TaggedArguments(self.source, self.answer, self.tags, self.request.tools.get(name)).read(marker)

    def _finish(self, ended_by: str | None) -> Steps[None]:
        self.answer.end_call()
        if ended_by is None:
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(self.tags.call_end))


class LongCatParser(GlmParser):
    tags = _tags("longcat_")
    opens = ("<longcat_tool_call>",)
    inner = (tags.parameter, tags.header_end, tags.value_open, tags.value_end, tags.call_end)


def _grammar(prefix: str) -> CallsGrammar:
    tags = _tags(prefix)
    writing = Writing(
        tags,
        lambda name, kind: (f"{tags.parameter}{name}{tags.header_end}", tags.value_open),
        between="\n",
        loose_lines=True,
    )

    def call(lark: Lark, tool: ToolSchema) -> str:
        """GLM 4.5 puts every tag on a line of its own, 4.7 puts none there."""
        arguments = arguments_grammar(lark, tool, writing)
        return lark.join(lark.lines(f"<{prefix}tool_call>{tool.name}", ""), arguments, lark.text(tags.call_end))

    return repeated(call, between="\n")


FAMILY = ParserFamily(
    name="glm",
    parser=GlmParser,
    calls=_grammar(""),
    signs=(("<arg_key>",),),
    needs_special_tokens=False,
    aliases=("glm45", "glm47", "laguna"),
)

LONGCAT = ParserFamily(
    name="longcat",
    parser=LongCatParser,
    calls=_grammar("longcat_"),
    signs=(("<longcat_tool_call>",),),
    needs_special_tokens=True,
)
