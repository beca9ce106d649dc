"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and since its v11 tokenizer `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

from dataclasses import replace

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import JsonCall, bare_arguments, take_name
from chorus.text.parsers.toolkit.lark import json_call, named_json, repeated
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Malformed, Markers, Steps, one

_OPEN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(OutlineParser):
    opens = (_OPEN,)
    inner = (_ARGS, _CALL_ID)
    call_ends_reasoning = True

    def call(self, opened_by: str) -> Steps[None]:
        yield from self.source.skip_space()
        if (yield from self.source.take_marker(one("["))):
            yield from self._list()
        elif (yield from self.source.take_marker(one("{"))):
            yield from JsonCall(self.source, self.answer).read(opened=True)
        else:
            yield from self._named()

    def _list(self) -> Steps[None]:
        while True:
            yield from JsonCall(self.source, self.answer).read()
            self.answer.end_call()
            if (yield from self.source.expect(Markers((",", "]")))) == "]":
                return

    def _named(self) -> Steps[None]:
        """Several calls may follow one opening; more often each has its own."""
        while True:
            name = yield from take_name(self.source)
            marker = yield from self.source.expect(Markers((_ARGS, _CALL_ID, "{")))
            call_id = None
            if marker == _CALL_ID:
                call_id, marker = yield from self.source.collect(Markers((_ARGS, _OPEN)))
                if marker == _OPEN:
                    raise Malformed
            self.answer.start(name, call_id.strip() if call_id else None)
            if marker == "{":
                self.source.put_back("{")
            yield from bare_arguments(self.source, self.answer, Markers(()))
            self.answer.end_call()
            yield from self.source.skip_space()
            following = yield from self.source.peek()
            if not following or not (following.isalnum() or following == "_"):
                return


FAMILY = ParserFamily(
    name="mistral",
    parser=MistralParser,
    calls=repeated(json_call("name", "arguments"), before=f"{_OPEN}[", after="]", between=", "),
    signs=((_OPEN,),),
    needs_special_tokens=True,
)

NAMED = replace(
    FAMILY,
    name="mistral_v11",
    calls=repeated(named_json(lambda name: f"{_OPEN}{name}{_ARGS}")),
    signs=((_OPEN, _ARGS),),
)
