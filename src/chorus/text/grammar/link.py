"""What the leader and a request's child say to each other.

The leader sends the grammar with its length before it, then tokens. The child answers each with READY; before the first
of them it may say what it is looking at. A failure is the last word, from the child or from whoever saw it end.
"""

from __future__ import annotations

import json
import struct

LENGTH = struct.Struct("<I")
TOKEN = struct.Struct("<I")
READY = b"+"
LOOKING_AT = b"@"
FAILED = b"-"
PLACE = struct.Struct("<H")
LONGEST_FAILURE = 4096


def looking_at(place: int) -> bytes:
    return LOOKING_AT + PLACE.pack(place)


def failure(reason: str, field: str = "") -> bytes:
    return FAILED + json.dumps([reason[: LONGEST_FAILURE // 16], field[: LONGEST_FAILURE // 16]]).encode() + b"\n"


def read_failure(line: bytes) -> tuple[str, str]:
    """The reason and the field; a child that was cut off in its last word has said nothing."""
    try:
        reason, field = json.loads(line)
    except ValueError:
        return "the process that held it ended", ""
    return reason, field
