"""One answer as it comes: its text, its thoughts, the calls it asks for, and how fast it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from chorus.bench.client import Client, one_line
from chorus.bench.stream import REASONING_FIELDS, Event, Usage, event_choices, event_usage
from chorus.platform.terminal import harmless

MOST_CALLS = 128


@dataclass(frozen=True)
class Piece:
    """Something new of an answer, as it may be shown."""

    kind: Literal["text", "thought", "note"]
    """A note is what the server says while it has no answer yet, such as how far a load is."""
    text: str


@dataclass
class Call:
    """A tool that the model wants to be called."""

    name: str = ""
    arguments: str = ""

    def __str__(self) -> str:
        return harmless(f"{self.name}({self.arguments})")


@dataclass
class Answer:
    """What has come so far, and when; moments are those of `time.perf_counter`."""

    sent: float = field(default_factory=time.perf_counter)
    text: str = ""
    thoughts: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    usage: Usage | None = None
    finish: str | None = None
    ended: bool = False
    """The server said that this is the end."""
    first: float | None = None
    last: float | None = None
    pieces: int = 0

    def read(self, when: float, event: Event) -> Iterator[Piece]:
        """What an event of the stream adds."""
        if event.comment:
            yield Piece("note", one_line(event.comment))
        self.ended = self.ended or event.done
        if (data := event.data) is None:
            return
        self.usage = event_usage(data) or self.usage
        for choice in event_choices(data)[:1]:
            if reason := choice.get("finish_reason"):
                self.finish, self.ended = one_line(str(reason)), True
            delta = choice.get("delta")
            if isinstance(delta, dict):
                yield from self._take(when, delta)

    def _take(self, when: float, delta: dict[str, Any]) -> Iterator[Piece]:
        thought = next((delta[name] for name in REASONING_FIELDS if _is_text(delta.get(name))), "")
        content = delta["content"] if _is_text(delta.get("content")) else ""
        called = self._take_calls(delta.get("tool_calls"))
        if not (thought or content or called):
            return
        self.first, self.last = self.first or when, when
        self.pieces += 1
        self.thoughts += thought
        self.text += content
        if thought:
            yield Piece("thought", harmless(thought))
        if content:
            yield Piece("text", harmless(content))

    def _take_calls(self, calls: object) -> bool:
        """Add to the calls what is new of them; their parts come in pieces, by number."""
        found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        for call in found:
            number, function = call.get("index", 0), call.get("function")
            if not isinstance(number, int) or not isinstance(function, dict) or len(self.calls) >= MOST_CALLS:
                continue
            known = self.calls.setdefault(number, Call())
            known.name += str(function.get("name") or "")
            known.arguments += str(function.get("arguments") or "")
        return bool(found)

    @property
    def tokens(self) -> int:
        """As the server counts them; where it does not, a piece is taken for one."""
        return self.usage.completion_tokens if self.usage else self.pieces

    def figures(self) -> str:
        """How much it was and how fast, in one line; a speed that one token does not have is left out."""
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.first is not None and self.last is not None:
            if self.last > self.first and self.tokens > 1:
                parts.append(f"{(self.tokens - 1) / (self.last - self.first):.1f} tok/s")
            parts.append(f"first token after {self.first - self.sent:.2f} s")
        if self.usage:
            stored = f" ({self.usage.cached_tokens} stored)" if self.usage.cached_tokens else ""
            parts.append(f"prompt {self.usage.prompt_tokens}{stored}")
        if self.finish not in (None, "stop", "tool_calls"):
            parts.append("cut at the most tokens" if self.finish == "length" else f"ended by {self.finish}")
        return ", ".join(parts)


async def stream(client: Client, body: dict[str, Any], answer: Answer, show: Callable[[Piece], None]) -> None:
    """Read an answer and show each piece of it; raises EndpointFailed. Cancelled, it lets go of the request."""
    async for when, event in client.events(body):
        for piece in answer.read(when, event):
            show(piece)
    if not answer.ended:
        raise client.ended_early()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
