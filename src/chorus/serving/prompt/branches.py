"""Where another request may part from a prompt: places in its text that the template itself is asked for.

Each is found by rendering a conversation that goes on otherwise, and comparing: no template is known by name. A
rendering takes about a thousandth of the time that its text takes to be encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from chorus.text.errors import TemplateError

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
"""A conversation as text, without the beginning of an answer."""

OTHERWISE = "\ue0f1"
"""A letter that nobody's message begins with."""
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True)
class Branches:
    """Numbers of characters, in order and each once."""

    cuts: tuple[int, ...] = ()
    needed: tuple[int, ...] = ()
    """Where the next turn of the same conversation parts from the prompt by the template's own doing: reasoning that
    it leaves out of earlier turns, or that it opens for an answer and not in history."""

    def behind(self, start: int) -> Branches:
        """Those in what is left of the text when its first `start` characters are cut off."""
        kept = ([place - start for place in places if place > start] for places in (self.cuts, self.needed))
        return Branches(*map(tuple, kept))


def branches(
    prompt: str, messages: Sequence[Message], render: Render, *, continues: bool = False, calls: bool = False
) -> Branches:
    """`continues`: the last message is the beginning of the answer. `calls`: the answer may call a tool."""

    def shared(conversation: Iterable[Message]) -> Iterator[int]:
        """How far a conversation begins like the prompt; nothing where the template refuses it."""
        try:
            yield common_length(prompt, render(list(conversation)))
        except TemplateError:
            return

    def cuts() -> Iterator[int]:
        leading = list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, messages))
        yield from shared([*leading, {"role": "user", "content": OTHERWISE}])
        asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
        if asked:
            yield from shared([*messages[: asked[-1]], {**messages[asked[-1]], "content": OTHERWISE}])
            yield from shared(messages[: asked[-1] + 1])
        if not continues:
            yield from shared(messages)

    def needed() -> Iterator[int]:
        before, begun = (messages[:-1], messages[-1]["content"]) if continues else (messages, "")
        answer = {"role": "assistant", "content": begun + OTHERWISE}
        yield from shared([*before, answer, {"role": "user", "content": OTHERWISE}])
        if calls:
            yield from shared([*before, {**answer, "tool_calls": [_CALL]}, _RESULT])

    inside = range(1, len(prompt))
    parting = {place for place in needed() if place in inside}
    return Branches(tuple(sorted(parting.union(place for place in cuts() if place in inside))), tuple(sorted(parting)))


_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_RESULT = {"role": "tool", "tool_call_id": _CALL["id"], "name": "f", "content": OTHERWISE}


def common_length(one: str, other: str) -> int:
    """Slices are compared by the machine's own instructions, letters one by one are not."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
