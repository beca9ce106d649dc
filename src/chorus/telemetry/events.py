"""Every kind of event that is worth knowing the next morning, declared once: name, level and sentence."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LONGEST_TEXT = 1000
_LONGEST_NAME = 300
_LATEST = 1e11
"""Seconds since the epoch that every calendar has a date for."""
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""What would move a terminal's cursor, or turn a line around: texts hold names and reasons that came from elsewhere."""


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Event:
    """Something that happened, as the journal keeps it."""

    time: float
    """Seconds since the epoch."""
    kind: str
    level: Level
    text: str
    """For people: a sentence."""
    server: str = ""
    """host:port of the API that it belongs to."""
    model: str = ""
    node: str = ""
    rank: int | None = None
    cause: str = ""
    """Of a loss: outside, fault or memory."""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """As JSON has it: what is empty is left out."""
        return {
            "time": round(self.time, 3),
            "kind": self.kind,
            "level": self.level.value,
            "text": self.text,
            **{name: text for name in ("server", "model", "node", "cause") if (text := getattr(self, name))},
            **({} if self.rank is None else {"rank": self.rank}),
            **({"numbers": dict(self.numbers)} if self.numbers else {}),
        }

    @classmethod
    def read(cls, line: bytes) -> Event | None:
        """From a line of the journal; None where it is none, whole or damaged."""
        try:
            found = json.loads(line)
            moment, rank = float(found["time"]), found.get("rank")
            numbers = {str(name)[:_LONGEST_NAME]: _number(value) for name, value in found.get("numbers", {}).items()}
            if not 0 <= moment < _LATEST or not all(map(math.isfinite, numbers.values())):
                return None
            return cls(
                moment,
                _plain(str(found["kind"]), _LONGEST_NAME),
                Level(found["level"]),
                _plain(str(found["text"]), LONGEST_TEXT),
                **{name: _plain(str(found.get(name, "")), _LONGEST_NAME) for name in _NAMES},
                rank=None if rank is None else int(rank),
                numbers=numbers,
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


_NAMES = ("server", "model", "node", "cause")


@dataclass(frozen=True)
class Kind:
    name: str
    level: Level
    sentence: str
    """Its fields are what whoever tells of it gives; those that are numbers are kept as such too."""
    counted: bool = False
    """Many in a row are told once, and then with their number."""

    def happened(
        self, server: str = "", model: str = "", node: str = "", rank: int | None = None, cause: str = "", **given: Any
    ) -> Event:
        """An event of this kind, now."""
        text = self.sentence.format(model=model, node=node, rank=rank, **given)
        return Event(
            time.time(),
            self.name,
            self.level,
            _plain(text, LONGEST_TEXT),
            server,
            _plain(model, _LONGEST_NAME),
            _plain(node, _LONGEST_NAME),
            rank,
            cause,
            {name: round(value, 3) for name, value in given.items() if isinstance(value, int | float)},
        )


def _number(value: Any) -> float:
    """As it was written: a number of streams has no decimals."""
    return value if isinstance(value, int) else float(value)


def _plain(text: str, longest: int) -> str:
    """One line that a terminal shows as it is, and of which a cut is seen."""
    text = _NOT_SHOWN.sub(" ", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


SERVER_STARTED = Kind("server_started", Level.INFO, "the server begins at {url}: {models} (Chorus {version})")
SERVER_STOPPED = Kind("server_stopped", Level.INFO, "the server at {url} was stopped")
SERVER_FAILED = Kind("server_failed", Level.ERROR, "the server at {url} gave up: {why}")
SERVER_VANISHED = Kind(
    "server_vanished", Level.WARNING, "the server before this one ended without a word: it, or its machine, was killed"
)
FRONT_END_LOST = Kind("front_end_lost", Level.WARNING, "{why}: the front end is started again, its streams were cut")
FRONT_END_REPLACED = Kind(
    "front_end_replaced", Level.INFO, "the front end was replaced: process {pid} accepts, {finishing} finishes"
)
MODEL_LOADING = Kind("model_loading", Level.INFO, "{model} is being loaded (ranks: {ranks})")
MODEL_READY = Kind("model_ready", Level.INFO, "{model} is ready after {seconds:.1f} s")
MODEL_FAILED = Kind("model_failed", Level.ERROR, "{model} failed: {why}")
MODEL_REFUSED = Kind("model_refused", Level.WARNING, "{model} is not loaded: {why}", counted=True)
MODEL_SWAPPED = Kind("model_swapped", Level.INFO, "{model} makes room for {other}")
MODEL_UNLOADED = Kind("model_unloaded", Level.INFO, "{model} is unloaded: {why}")
RANK_LOST = Kind("rank_lost", Level.WARNING, "{model}: {why}; starting {what} again")
RECOVERED = Kind(
    "recovered",
    Level.INFO,
    "{model} goes on {seconds:.1f} s after a loss ({why}); streams carried: {streams}, tokens read again: {tokens}",
)
SERVES_AGAIN = Kind("serves_again", Level.INFO, "{model}: all ranks serve again, {seconds:.1f} s after the loss")
REQUESTS_RESUMED = Kind(
    "requests_resumed", Level.INFO, "{model}: requests that go on with the next engine after {seconds:.1f} s: {streams}"
)
REPLANNED = Kind("replanned", Level.INFO, "{model}: {why}; its ranks are ended in order and planned anew")
GOES_ON = Kind("goes_on", Level.WARNING, "{model} goes on over {nodes}{without}{less}")
NODE_JOINED = Kind("node_joined", Level.INFO, "{node} is there, at {address}")
NODE_LOST = Kind("node_lost", Level.WARNING, "{node} is gone: {why}")
NODE_DRAINS = Kind("node_drains", Level.INFO, "{node} drains: it gets no more ranks")
NODE_RETURNS = Kind("node_returns", Level.INFO, "{node} takes ranks again")
NODE_EXPELLED = Kind("node_expelled", Level.WARNING, "{node} was expelled from the cluster")
GRAMMAR_ENDED = Kind(
    "grammar_ended", Level.WARNING, "{model}: the process of a request's grammar was ended: {why}", counted=True
)
REQUEST_FAILED = Kind("request_failed", Level.ERROR, "{model}: a request failed: {code}", counted=True)
REQUEST_REFUSED = Kind("request_refused", Level.WARNING, "{model}: a request could not be taken: {code}", counted=True)
KEY_REFUSED = Kind("key_refused", Level.WARNING, "a request was refused for its API key: {why}", counted=True)

KINDS = {kind.name: kind for kind in tuple(globals().values()) if isinstance(kind, Kind)}
