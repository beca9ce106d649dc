"""What LocalAI is told when something does not work, as types the servicer maps to its results and codes."""

from __future__ import annotations

import re

from chorus.errors import ChorusError

_FLAG = re.compile(r"--(transport|parallel|split|weights|ranks|context)\b(?:[ =]([\w,]+))?")
"""Flags that are options of a model too."""


class LoadFailed(ChorusError):
    """The model cannot be loaded: names the option, the file or the rank, and why."""


def in_options(text: str) -> str:
    """What a rank or a planner says about flags, as whoever writes a model's file can follow it."""
    return _FLAG.sub(lambda found: f"option {found[1]}" + (f":{found[2]}" if found[2] else ""), text)


class BadRequest(ChorusError):
    """The request cannot be served as it is: names the field."""


class NotServing(ChorusError):
    """The model was loaded and cannot be reached now: it recovers, or it was given up."""
