"""Conversations that a template refuses for the order of their roles, told in an order that it takes.

Agents put instructions between the messages, and several messages of the user in a row; many templates know one system
message at most, the first, and want user and assistant to take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

Message = dict[str, Any]

_JOINT = "\n\n"
_INSTRUCTIONS = ("system", "developer")
_JOINED = (*_INSTRUCTIONS, "user")


def orders(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """As sent, then with later instructions in the user's messages, then with all of them there; each shape once."""
    told = [list(messages)]
    yield told[0]
    leading = len(list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, messages)))
    for kept in (leading, 0):
        shape = _in_turns(messages, kept)
        if shape not in told:
            told.append(shape)
            yield shape


def _in_turns(messages: Sequence[Message], kept: int) -> list[Message]:
    """Instructions after the first `kept` messages become the user's; neighbours of one role become one message."""
    told = [
        {**message, "role": "user"} if place >= kept and message["role"] in _INSTRUCTIONS else message
        for place, message in enumerate(messages)
    ]
    turns: list[Message] = []
    for role, neighbours in groupby(told, key=itemgetter("role")):
        first, *others = neighbours
        if role not in _JOINED:
            turns += [first, *others]
        elif not others:
            turns.append(first)
        else:
            turns.append({**first, "content": _JOINT.join(message["content"] for message in (first, *others))})
    return turns
