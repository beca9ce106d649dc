"""Kimi K3: every element opens with `<|open|>name attributes<|sep|>` and closes with `<|close|>name<|sep|>`."""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import bare_arguments
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Markers, Steps, one
from chorus.text.parsers.toolkit.tagged import TaggedArguments, Tags, attribute, named_by
from chorus.text.parsers.toolkit.tagged_grammar import Writing, arguments_grammar
from chorus.text.parsers.toolkit.values import ToolSchema

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_TOOLS, _TOOLS_END = f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"
_CALL, _JSON, _JSON_END = f"{_OPEN}call", f"{_OPEN}json", f"{_CLOSE}json{_SEP}"
_TAGS = Tags(
    parameter=f"{_OPEN}argument",
    header_end=_SEP,
    value_end=f"{_CLOSE}argument{_SEP}",
    call_end=f"{_CLOSE}call{_SEP}",
    name_of=named_by("key"),
    is_string=lambda header: attribute(header, "type") in ("string", None),
)
_tool_of = named_by("tool")


class KimiK3Parser(OutlineParser):
    opens = (_TOOLS,)
    inner = (_TOOLS_END, _CALL, _JSON, _JSON_END, _TAGS.parameter, _TAGS.value_end, _TAGS.call_end, _SEP)
    wraps = (f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}", f"{_CLOSE}message{_SEP}")
    dropped = (*wraps, "<|end_of_msg|>")
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.expect(one(_CALL))
        while True:
            yield from self._one()
            self.answer.end_call()
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(Markers((_CALL, _TOOLS_END)))) != _CALL:
                return

    def _one(self) -> Steps[None]:
        header = yield from self.source.header(_SEP)
        name = _tool_of(header)
        self.answer.start(name)
        yield from self.source.skip_space()
        if not (yield from self.source.take_marker(one(_JSON))):
            yield from TaggedArguments(self.source, self.answer, _TAGS, self.request.tools.get(name)).read()
            return
        yield from self.source.header(_SEP)
        ended_by = yield from bare_arguments(self.source, self.answer, one(_JSON_END))
        self.answer.end_call()
        for end in (_JSON_END, _TAGS.call_end) if ended_by is None else (_TAGS.call_end,):
            yield from self.source.skip_space()
            yield from self.source.take_marker(one(end))


def _attribute_text(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _opened(parameter: str, kind: str) -> tuple[str]:
    return (f'{_TAGS.parameter} key="{_attribute_text(parameter)}" type="{kind}"{_SEP}',)


_WRITING = Writing(_TAGS, _opened, marks_strings=True)


def _call(lark: Lark, tool: ToolSchema) -> str:
    head = lark.join(
        lark.text(f'{_CALL} tool="{_attribute_text(tool.name)}" index="'), "/[0-9]{1,3}/", lark.text(f'"{_SEP}')
    )
    return lark.join(head, arguments_grammar(lark, tool, _WRITING), lark.text(_TAGS.call_end))


FAMILY = ParserFamily(
    name="kimi_k3",
    parser=KimiK3Parser,
    calls=repeated(_call, before=_TOOLS, after=_TOOLS_END),
    signs=((_OPEN, _CLOSE, _SEP),),
    needs_special_tokens=True,
)
