"""What a streamed answer says: its pieces of text, each with the moment it came, and the server's own counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from chorus.errors import InternalSignal

Chunk = tuple[float, bytes]
"""When some bytes came, and which."""
_DONE = "[DONE]"
_MOST_TOKENS = 10**9
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Servers call a model's thoughts by either name."""
_TEXT_FIELDS = ("content", *REASONING_FIELDS)


class NoEvents(InternalSignal, ValueError):
    """These bytes are no stream of events."""


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """None where the server does not tell."""


@dataclass(frozen=True)
class Reading:
    """All that came of one stream."""

    arrivals: tuple[float, ...]
    """When each piece of text came."""
    text: str
    usage: Usage | None
    finished: bool
    """The server said that this is the end."""
    error: str | None = None
    """What the server said went wrong in the middle."""


def read(chunks: Iterable[Chunk]) -> Reading:
    """Raises NoEvents where they are something else."""
    arrivals: list[float] = []
    pieces: list[str] = []
    usage: Usage | None = None
    finished, error, events = False, None, 0
    for when, line in lines(chunks):
        finished = finished or is_done(line)
        if (data := event_data(line)) is None:
            continue
        events += 1
        error = error or event_error(data)
        if piece := event_text(data):
            arrivals.append(when)
            pieces.append(piece)
        usage = event_usage(data) or usage
        finished = finished or any(choice.get("finish_reason") for choice in event_choices(data))
    if not events and not finished:
        raise NoEvents("no event in it")
    return Reading(tuple(arrivals), "".join(pieces), usage, finished, error)


class Lines:
    """Puts lines together from the pieces in which they come."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._when = 0.0

    def push(self, chunk: Chunk) -> Iterator[tuple[float, bytes]]:
        """The lines that this piece ends."""
        self._when, data = chunk
        *whole, last = data.split(b"\n")
        for line in whole:
            yield self._when, b"".join([*self._rest, line]).rstrip(b"\r")
            self._rest.clear()
        self._rest.append(last)

    def rest(self) -> Iterator[tuple[float, bytes]]:
        """What came behind the last end of a line."""
        if any(self._rest):
            yield self._when, b"".join(self._rest)


def lines(chunks: Iterable[Chunk]) -> Iterator[tuple[float, bytes]]:
    """Each line with the moment at which it was whole."""
    whole = Lines()
    for chunk in chunks:
        yield from whole.push(chunk)
    yield from whole.rest()


def is_done(line: bytes) -> bool:
    """Whether it is the mark that closes a stream."""
    return line.removeprefix(b"data:").strip() == _DONE.encode()


@dataclass(frozen=True)
class Event:
    """A line of a stream that says something."""

    data: dict[str, Any] | None = None
    comment: str = ""
    """What a server says while it has no answer yet, such as how far a load is."""
    done: bool = False
    """It is the mark that closes the stream."""


def event_of(line: bytes) -> Event | None:
    """None for a line that says nothing; raises NoEvents."""
    if line.startswith(b":"):
        return Event(comment=line[1:].decode(errors="replace").strip())
    if is_done(line):
        return Event(done=True)
    data = event_data(line)
    return Event(data) if data is not None else None


def event_data(line: str | bytes) -> dict[str, Any] | None:
    """The JSON of a server-sent event; None for other lines, comments and the closing mark among them."""
    shown = line.decode(errors="replace") if isinstance(line, bytes) else line
    if not shown.startswith("data:"):
        return None
    text = shown.removeprefix("data:").strip()
    if not text or text == _DONE:
        return None
    try:
        data = orjson.loads(text)
    except ValueError as error:
        raise NoEvents(f"{text[:80]!r} is no JSON") from error
    if not isinstance(data, dict):
        raise NoEvents(f"{text[:80]!r} is no event of OpenAI's")
    return data


def event_text(data: dict[str, Any]) -> str:
    """What an event of either kind of stream adds to the answer, thoughts among it."""
    return "".join(_text(choice) for choice in event_choices(data))


def event_usage(data: dict[str, Any]) -> Usage | None:
    told = data.get("usage")
    if not isinstance(told, dict):
        return None
    prompt, completion = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = told.get("prompt_tokens_details")
    return Usage(prompt, completion, _count(details.get("cached_tokens")) if isinstance(details, dict) else None)


def event_error(data: dict[str, Any]) -> str | None:
    """What a server says went wrong, in its own words."""
    error = data.get("error")
    if not error:
        return None
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def event_choices(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of its answers that an event has something new of."""
    choices = data.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    told = [choice.get("text"), *(delta.get(name) for name in _TEXT_FIELDS if isinstance(delta, dict))]
    return next((text for text in told if isinstance(text, str) and text), "")


def _count(value: object) -> int | None:
    fine = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
    return value if isinstance(value, int) and fine else None
