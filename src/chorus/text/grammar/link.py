"""What the leader and a request's child say to each other.

The leader sends the grammar with its length before it, then tokens. The child answers each with READY; before the first
of them it may say what it is looking at. A failure is the last word, from the child or from whoever saw it end.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

LENGTH = struct.Struct("<I")
TOKEN = struct.Struct("<I")
READY = b"+"
LOOKING_AT = b"@"
FAILED = b"-"
PLACE = struct.Struct("<H")
LONGEST_FAILURE = 4096


def looking_at(place: int) -> bytes:
    return LOOKING_AT + PLACE.pack(place)


class Failure(NamedTuple):
    reason: str
    field: str = ""
    """What the client called it, where the child knows."""
    ended: bool = False
    """Not the grammar is wrong: its process had to end, or died."""


def failure(reason: str, field: str = "", ended: bool = False) -> bytes:
    longest = LONGEST_FAILURE // 16
    return FAILED + json.dumps(Failure(reason[:longest], field[:longest], ended)).encode() + b"\n"


def read_failure(line: bytes) -> Failure:
    """A child that was cut off in its last word has said nothing."""
    try:
        return Failure(*json.loads(line))
    except ValueError:
        return Failure("the process that held it ended", ended=True)
