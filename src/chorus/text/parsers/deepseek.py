"""DeepSeek: calls between tokens of their own.

V3 and R1 write `function<｜tool▁sep｜>name` and fence the arguments as a JSON code block; V3.1 writes the name, the
separator and the bare object; V3.2 writes tags. The first two are read by one parser.
"""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import bare_arguments, valid_name
from chorus.text.parsers.toolkit.lark import Lark, named_json, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Markers, Steps, one
from chorus.text.parsers.toolkit.strings import Inexpressible
from chorus.text.parsers.toolkit.tagged import TaggedArguments, Tags, attribute, named_by
from chorus.text.parsers.toolkit.tagged_grammar import Writing, arguments_grammar
from chorus.text.parsers.toolkit.values import ToolSchema

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"
# Stands where the name is expected; the name and a fence follow.
_FENCED_SIGN = "function"
_TURN_END = "<｜end▁of▁sentence｜>"


class DeepSeekParser(OutlineParser):
    opens = (_SECTION, _CALL)
    inner = (_SECTION_END, _CALL_END, _SEPARATOR)
    dropped = (_TURN_END,)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        if opened_by == _SECTION:
            yield from self.source.expect(one(_CALL))
        while True:
            yield from self._one()
            self.answer.end_call()
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(Markers((_CALL, _SECTION_END)))) != _CALL:
                return

    def _one(self) -> Steps[None]:
        head = yield from self.source.header(_SEPARATOR)
        ends = Markers((_CALL_END, _SECTION_END))
        if head.strip() != _FENCED_SIGN:
            self.answer.start(valid_name(head))
            ended_by = yield from bare_arguments(self.source, self.answer, ends)
            yield from self._finish(ended_by, ends)
            return
        yield from self.source.skip_space()
        name, marker = yield from self.source.collect(Markers(("\n", "{", _CALL_END)))
        self.answer.start(valid_name(name))
        if marker == _CALL_END:
            self.answer.arguments("{}")
            return
        if marker == "{":
            self.source.put_back("{")
        yield from self.source.skip_space()
        yield from self.source.take_marker(one(_FENCE))
        ended_by = yield from bare_arguments(self.source, self.answer, ends)
        yield from self._finish(ended_by, ends)

    def _finish(self, ended_by: str | None, ends: Markers) -> Steps[None]:
        """Past the fence and the end of the call, either of which may be missing at the end of the text."""
        self.answer.end_call()
        if ended_by is not None:
            return
        for optional in (one(_FENCE_END), one(_CALL_END)):
            yield from self.source.skip_space()
            yield from self.source.take_marker(optional)


_DSML = "｜DSML｜"
_TAGS = Tags(
    parameter=f"<{_DSML}parameter",
    header_end=">",
    value_end=f"</{_DSML}parameter>",
    call_end=f"</{_DSML}invoke>",
    name_of=named_by("name"),
    is_string=lambda header: {"true": True, "false": False}.get(attribute(header, "string") or ""),
)
_BLOCK, _BLOCK_END, _INVOKE = f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", f"<{_DSML}invoke"


class DeepSeekTagsParser(OutlineParser):
    opens = (_BLOCK,)
    inner = (_BLOCK_END, _INVOKE, _TAGS.call_end, _TAGS.parameter, _TAGS.value_end)
    dropped = (_TURN_END,)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.expect(one(_INVOKE))
        while True:
            header = yield from self.source.header(">")
            name = _TAGS.name_of(header)
            self.answer.start(name)
            yield from TaggedArguments(self.source, self.answer, _TAGS, self.request.tools.get(name)).read()
            self.answer.end_call()
            yield from self.source.skip_space()
            if (yield from self.source.take_marker(Markers((_INVOKE, _BLOCK_END)))) != _INVOKE:
                return


def _opened(parameter: str, kind: str) -> tuple[str]:
    return (f'<{_DSML}parameter name="{parameter}" string="{"true" if kind == "string" else "false"}">',)


_WRITING = Writing(_TAGS, _opened, between="\n", marks_strings=True)


def _tagged_call(lark: Lark, tool: ToolSchema) -> str:
    arguments = arguments_grammar(lark, tool, _WRITING)
    return lark.join(lark.text(f'{_INVOKE} name="{tool.name}">\n'), arguments, lark.text(f"{_TAGS.call_end}\n"))


def _bare_call(lark: Lark, tool: ToolSchema) -> str:
    if tool.name == _FENCED_SIGN and not lark.lenient:
        raise Inexpressible(f"the name {_FENCED_SIGN!r} is a mark of the format: give the tool another one")
    return named_json(lambda name: f"{_CALL}{name}{_SEPARATOR}", _CALL_END)(lark, tool)


FENCED = ParserFamily(
    name="deepseek",
    parser=DeepSeekParser,
    calls=repeated(
        named_json(lambda name: f"{_CALL}{_FENCED_SIGN}{_SEPARATOR}{name}\n{_FENCE}\n", f"\n{_FENCE_END}{_CALL_END}"),
        before=_SECTION,
        after=_SECTION_END,
        between="\n",
    ),
    signs=((_SECTION, _FENCE),),
    needs_special_tokens=True,
    aliases=("deepseek_v3", "deepseek_r1"),
)

BARE = ParserFamily(
    name="deepseek_v31",
    parser=DeepSeekParser,
    calls=repeated(_bare_call, before=_SECTION, after=_SECTION_END),
    signs=((_SECTION,),),
    needs_special_tokens=True,
)

TAGGED = ParserFamily(
    name="deepseek_v32",
    parser=DeepSeekTagsParser,
    calls=repeated(_tagged_call, before=f"{_BLOCK}\n", after=_BLOCK_END),
    signs=((_BLOCK,), (f"{_DSML}function_calls",)),
    needs_special_tokens=True,
)
