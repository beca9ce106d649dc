"""Harmony, the format of gpt-oss: a row of messages, each with a channel and at times a recipient.

`analysis` is reasoning; a message to `functions.name` is a call; `final`, and `commentary` to nobody, are content.
The prompt ends with `<|start|>assistant`, so an answer begins in the middle of a message's head.
"""

from __future__ import annotations

import re

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.jsoncall import bare_arguments
from chorus.text.parsers.toolkit.lark import Lark, repeated
from chorus.text.parsers.toolkit.outline import StreamingParser
from chorus.text.parsers.toolkit.source import CutOff, Markers, Steps
from chorus.text.parsers.toolkit.values import ToolSchema

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
_BODY_ENDS = Markers((_END, _RETURN, _CALL, _START, _CHANNEL))
_HEAD_ENDS = Markers((_MESSAGE, _END, _RETURN, _CALL))
_ALL = Markers((*_BODY_ENDS.strings, _MESSAGE, _CONSTRAIN))
_HEAD_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", "to=")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser(StreamingParser):
    def parse(self) -> Steps[None]:
        yield from self.source.skip_space()
        begins_with_head = yield from self.source.take_marker(Markers((_START, _CHANNEL, "to=")))
        if begins_with_head is None:
            ended_by = yield from self._body(in_reasoning=self.request.starts_in_reasoning)
        else:
            ended_by = yield from self._message(begins_with_head)
        while ended_by is not None:
            head = ended_by if ended_by in (_START, _CHANNEL) else None
            if head is None:
                yield from self.source.skip_space()
                self.source.commit()
                head = yield from self.source.take_marker(Markers((_START, _CHANNEL)))
            if head is None:
                ended_by = yield from self._body(in_reasoning=False)
            else:
                ended_by = yield from self._message(head)

    def _message(self, opened_by: str) -> Steps[str | None]:
        """The marker that ended it; None at the end of the text."""
        parts = [opened_by]
        head_end = yield from self.source.until(_HEAD_ENDS, parts.append)
        head = "".join(parts)
        if head_end != _MESSAGE:
            self.answer.content(_words_not_of_a_head(head))
            return head_end
        self.source.commit()
        return (yield from self._addressed(head))

    def _addressed(self, head: str) -> Steps[str | None]:
        channel = found[1] if (found := _CHANNEL_NAME.search(head)) else "final"
        recipient = found[1] if (found := _RECIPIENT.search(head)) else ""
        name = recipient.removeprefix("functions.")
        if name and self.request.tools and (name in self.request.tools or name != recipient):
            return (yield from self._call(name))
        return (yield from self._body(in_reasoning=channel == "analysis"))

    def _body(self, *, in_reasoning: bool) -> Steps[str | None]:
        sink = self.answer.reasoning if in_reasoning else self.answer.content
        marker = yield from self.source.until(_BODY_ENDS, sink)
        self.source.commit()
        return marker

    def _call(self, name: str) -> Steps[str | None]:
        self.answer.start(name)
        try:
            marker = yield from bare_arguments(self.source, self.answer, _BODY_ENDS)
        except CutOff:
            return None
        finally:
            self.answer.end_call()
        if marker is not None:
            return marker
        yield from self.source.skip_space()
        if marker := (yield from self.source.take_marker(_BODY_ENDS)):
            return marker
        return (yield from self._body(in_reasoning=False))


def _words_not_of_a_head(head: str) -> str:
    """A head without a message says nothing; but what does not belong into one is not lost."""
    text = _ALL.without(head).strip()
    belongs = all(
        word.startswith("to=") or any(known.startswith(word) for known in _HEAD_WORDS) for word in text.split()
    )
    return "" if belongs else text


def _grammar_call(lark: Lark, tool: ToolSchema) -> str:
    head = lark.text(f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}")
    return lark.join(f"({lark.text(f'{_START}assistant')})?", head, lark.json(tool.schema))


FAMILY = ParserFamily(
    name="harmony",
    parser=HarmonyParser,
    # One call a turn: the token that ends a call ends the turn.
    calls=lambda lark, tools, parallel: repeated(_grammar_call)(lark, tools, False),
    signs=((_CHANNEL, _MESSAGE),),
    needs_special_tokens=True,
    reasoning=(f"{_CHANNEL}analysis{_MESSAGE}", _END),
    aliases=("gpt_oss", "openai"),
)
