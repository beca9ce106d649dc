"""How often everything that runs shows that it lives, how often others look, and how long silence is borne.

All of it is one value, so that what must fit together is checked together. It is the section `watch` of the settings,
and stands in this package because ranks use it too, which know nothing of settings. The settings of the machine that
serves hold for the whole cluster: whoever starts a process hands them on in a variable, a coordinator tells its agents
with every call that starts or watches ranks, and a node that is called by another one tells how often to.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from chorus.errors import ChorusError

_VARIABLE = "CHORUS_TIMING"
_METADATA = "chorus-timing"
BEATS = 3
"""So many signs of life in a row may be late or lost before silence means anything."""


class BadTiming(ChorusError, ValueError):
    """A time that cannot be, or two that do not fit together: `settings` are their names, the one to change first."""

    def __init__(self, message: str, *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


@dataclass(frozen=True)
class WatchTimes:
    """Every beat, every look and every silence, in seconds; there is none whose parts do not fit together."""

    silence_seconds: float = 3.0
    """How long a process that serves may go without a tick before it is replaced; 0: nothing is ever judged."""
    tick_seconds: float = 0.5
    """How often a process ticks for whoever started it."""
    look_seconds: float = 0.5
    """How often whoever started it looks."""
    stopped_seconds: float = 1.0
    """How long a process may stand still by a signal: tools that slow one down stop it for moments only."""
    loop_tick_seconds: float = 1.0
    """How often an event loop that must not stand still ticks beside its process."""
    loop_silence_seconds: float = 15.0
    """How long such a loop may do nothing else: a large request keeps it busy for a while."""
    start_silence_seconds: float = 60.0
    """In place of silence_seconds while a process starts, loads, warms up or ends: loading a library or building an
    array keeps Python's lock, from a slow disk for many seconds.
    """
    join_seconds: float = 120.0
    """How long ranks may take to meet inside MLX, which keeps Python's lock meanwhile; then the process ends itself."""
    join_silence_seconds: float = 150.0
    """In place of silence_seconds while they meet."""
    heartbeat_seconds: float = 0.5
    """How often an agent tells its coordinator how its node is, and a coordinator its agents that it is there."""
    agent_silence_seconds: float = 3.0
    """A node from which no heartbeat came for so long, and without which no step has finished since, is lost."""
    abandon_seconds: float = 5.0
    """A coordinator that was silent for so long has left its ranks to whoever else wants the node's memory."""
    lease_seconds: float = 15.0
    """After so long without a word from their coordinator, ranks are ended."""
    peer_heartbeat_seconds: float = 5.0
    """How often a node that called another one tells it that it is still on the line."""
    peer_silence_seconds: float = 20.0
    """How long the other one waits for that."""

    def __post_init__(self) -> None:
        for setting, value in asdict(self).items():
            if not (0 < value < math.inf or (value == 0 and setting in _MAY_BE_OFF)):
                raise BadTiming(f"must be {_never(setting)}more than 0; got {value:g}", setting)
        for setting, times, other, why in _AT_LEAST:
            value, least = getattr(self, setting), times * getattr(self, other)
            if value < least and not (value == 0 and setting in _MAY_BE_OFF):
                held = f"at least {least:g}, since watch.{other} is {getattr(self, other):g} and {why}"
                raise BadTiming(f"must be {_never(setting)}{held}; got {value:g}", setting, other)

    def environment(self) -> dict[str, str]:
        """For a process that we start."""
        return {_VARIABLE: json.dumps(asdict(self))}

    def metadata(self) -> tuple[tuple[str, str]]:
        """For a call to an agent."""
        return ((_METADATA, json.dumps(asdict(self))),)

    @classmethod
    def told(cls, metadata: Iterable[tuple[str, str | bytes]] | None = None) -> WatchTimes:
        """What came with a call, or else what this process was started with; the defaults where nobody said."""
        found = os.environ.get(_VARIABLE) if metadata is None else dict(metadata).get(_METADATA)
        # Another release may have times that this one does not know.
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in json.loads(found).items() if name in known}) if found else cls()


_MAY_BE_OFF = {"silence_seconds"}
_AT_LEAST = (
    ("silence_seconds", BEATS, "tick_seconds", "a busy process may tick late"),
    ("silence_seconds", 1, "look_seconds", "nobody looks more often"),
    ("stopped_seconds", 2, "tick_seconds", "the time is counted from the last tick"),
    ("loop_silence_seconds", BEATS, "loop_tick_seconds", "a busy loop may tick late"),
    ("join_silence_seconds", 1, "join_seconds", "ranks that meet are silent for as long"),
    ("agent_silence_seconds", BEATS, "heartbeat_seconds", "a heartbeat may come late"),
    ("abandon_seconds", BEATS, "heartbeat_seconds", "a heartbeat may come late"),
    ("lease_seconds", 1, "abandon_seconds", "ranks that were left may be ended before the others"),
    ("lease_seconds", 1, "agent_silence_seconds", "the coordinator notices a lost node before the node ends its ranks"),
    ("peer_silence_seconds", BEATS, "peer_heartbeat_seconds", "a heartbeat may come late"),
)
"""Which setting is at least so many times which other one, and why."""


def _never(setting: str) -> str:
    return "0 (never) or " if setting in _MAY_BE_OFF else ""


DEFAULTS = WatchTimes()
